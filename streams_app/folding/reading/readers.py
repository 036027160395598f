"""Chooses the event reader of a fold (pure)."""

from __future__ import annotations

from streams_app.fold import Fold
from streams_app.folding.reading.by_functions import PythonReader
from streams_app.folding.reading.fast import ColumnarReader, FastKeptReader, FastReader, is_usual, is_usual_kept
from streams_app.folding.reading.reader import EventReader
from streams_app.folding.reading.unwrapping import FormatReader
from streams_app.native import NativeCore
from streams_app.schemas.cache import SchemaCache
from streams_app.settings import Limits


def reader_of(fold: Fold, limits: Limits, schemas: SchemaCache | None = None, core: NativeCore | None = None) -> EventReader:
    """Create the event reader for a fold: a fast one for the usual settings, otherwise a general one.

    ``schemas`` is None if no value is framed by a schema registry, as in a file or a test.
    """
    if is_usual(fold):
        return FastReader(fold, limits) if core is None else ColumnarReader(fold, limits, core)
    if is_usual_kept(fold):
        return FastKeptReader(fold, limits)
    reader = PythonReader(fold, limits) if fold.is_by_functions else EventReader(fold, limits)
    return reader if fold.format == "json" else FormatReader(fold, limits, reader, schemas)
