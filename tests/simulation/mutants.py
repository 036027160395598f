"""Deliberately broken variants of the product: how they are made.

A mutant is a few replacements in the text of a method or of a Lua script. The replaced text must occur exactly once, so that an
outdated mutant fails. The mutants are in ``mutants_*.py`` in this folder.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

from streams_app.delivery import scripts as scripts_module
from streams_app.delivery.scripts import script_text
from streams_app.folding.store.scripts import FoldScripts
from streams_app.journal.store.journal_store import JournalScripts
from streams_app.live.store.view_store import LiveScripts
from streams_app.subscribers.state.store import SubscriberScripts

PACKAGES = {"subscribers": SubscriberScripts.package, "live": LiveScripts.package, "journal": JournalScripts.package}
"""First folder in :attr:`Change.where` → package of the script. All other scripts are those of folds."""


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement.

    Attributes:
        where: ``module:function`` or ``module:Class.method`` (it may be a property) below ``streams_app``, or ``script.lua`` of
            the folds, ``subscribers/script.lua``, ``live/script.lua`` or ``journal/script.lua``.
        old: Text within one line that occurs exactly once.
        new: Its replacement; further lines are indented like the line of ``old``.
    """

    where: str
    old: str
    new: str

    @property
    def file(self) -> str:
        """The end of the path of the changed file."""
        if self.where.endswith(".lua"):
            return f"/{self.where.rpartition('/')[2]}"
        return f"{self.where.partition(':')[0].replace('.', '/')}.py"

    def applied_to(self, source: str) -> str:
        """Return the changed text.

        Raises:
            LookupError: The text does not contain ``old`` exactly once.
        """
        if source.count(self.old) != 1:
            raise LookupError(f"{self.old!r} is {source.count(self.old)} times in {self.where}")
        line = next(line for line in source.splitlines() if self.old in line)
        indent = line[: len(line) - len(line.lstrip())]
        return source.replace(self.old, self.new.replace("\n", "\n" + indent))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken variant.

    Attributes:
        name: The defect.
        why: The consequence of the missing rule.
        mixes: Schedules that detect it, see :func:`tests.simulation.world.run_schedule`.
        changes: The replacements.
    """

    name: str
    why: str
    mixes: tuple[str, ...]
    changes: tuple[Change, ...]

    def function(self) -> FunctionType:
        """The first changed function."""
        return function_at(next(change.where for change in self.changes if not change.where.endswith(".lua")))[1]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the changes within the block."""
        by_place: dict[str, list[Change]] = defaultdict(list)
        for change in self.changes:
            by_place[change.where].append(change)
        scripts = {where.removesuffix(".lua"): found for where, found in by_place.items() if where.endswith(".lua")}
        with ExitStack() as stack:
            for where, changes in by_place.items():
                if not where.endswith(".lua"):
                    stack.enter_context(_broken_function(where, changes))
            stack.enter_context(_broken_scripts(scripts))
            yield


def _apply(source: str, changes: list[Change]) -> str:
    for change in changes:
        source = change.applied_to(source)
    return source


def function_at(where: str) -> tuple[ModuleType, FunctionType]:
    """Return the function, or the getter of the property, that :class:`Change` names, and its module."""
    module_name, _, path = where.partition(":")
    module = importlib.import_module(f"streams_app.{module_name}")
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return module, _unwrapped(found)


def _unwrapped(found: Any) -> Any:
    """Return the getter of a property."""
    return found.fget if isinstance(found, property) else found


@contextmanager
def _broken_function(where: str, changes: list[Change]) -> Iterator[None]:
    """Replace the code of a function, so that every reference to it uses the new code."""
    module, function = function_at(where)
    source = _apply(textwrap.dedent(inspect.getsource(function)), changes)
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(source, f"<mutant of {where}>", "exec", flags, dont_inherit=True), module.__dict__, made)
    before = function.__code__
    function.__code__ = _unwrapped(made[function.__name__]).__code__
    try:
        yield
    finally:
        function.__code__ = before


@contextmanager
def _broken_scripts(scripts: dict[str, list[Change]]) -> Iterator[None]:
    ids = {where: _package_and_name(where) for where in scripts}
    texts = {ids[where]: _apply(script_text(*ids[where]), changes) for where, changes in scripts.items()}
    with patch.object(scripts_module, "script_text", lambda *script: texts.get(script) or script_text(*script)):
        yield


def _package_and_name(where: str) -> tuple[str, str]:
    """Return the package and the name of a script."""
    room, _, name = where.partition("/")
    return (PACKAGES[room], name) if room in PACKAGES else (FoldScripts.package, where)
