"""Default settings for an application that runs without servers and has no settings of its own."""

from __future__ import annotations

from collections.abc import Sequence

from streams_app.fold import Fold
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscriber import Records


def settings_of(app_id: str, catalogue: Catalogue, folds: Sequence[Fold] = ()) -> Settings:
    """Create default settings for an application.

    Args:
        catalogue: The declared subscribers. If they receive the records of a fold that is not in ``folds``, a placeholder of that
            fold is added.
    """
    declared = {fold.name for fold in folds}
    wanted = dict.fromkeys(one.source.fold for one in catalogue.subscribers if isinstance(one.source, Records))
    stand_ins = [
        Fold(name=name, source=f"{name}.source", output=name, group_key="key", changed="changed", quiet_period="1m")
        for name in wanted
        if name not in declared
    ]
    # Validation is skipped, because it requires at least one fold; an application with events alone has none.
    return Settings.model_construct(app_id=app_id, folds=(*folds, *stand_ins))
