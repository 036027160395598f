"""What the groups of a shard mean (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from streams_app.folding.core.record import RecordShape


@dataclass(slots=True)
class Definition:
    """The definition of a fold, as this worker has it and as its groups are stored.

    Attributes:
        present: As this worker has it.
        stored: The one under which the groups were folded.
        functions_disagree: Whether functions of the user now say something else of the range under way.
    """

    present: RecordShape
    stored: RecordShape
    functions_disagree: bool = False

    @property
    def has_changed(self) -> bool:
        """Whether what is stored leaves first: what is folded now means something else."""
        return self.stored != self.present or self.functions_disagree
