"""Creates the processors of a partition: one for each fold of its topic, and one for each retired fold."""

from __future__ import annotations

import logging
from collections.abc import Collection

from streams_app.delivery.batch import TP
from streams_app.delivery.processor import Processor
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.agents.decoded_batches import DecodedBatchCache
from streams_app.folding.agents.processor import FoldProcessor, explains_folding
from streams_app.folding.agents.retired_folds import RetiredFoldProcessor
from streams_app.folding.metadata_size import too_long
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.shard_store import ShardStore
from streams_app.native import native_core
from streams_app.schemas.waiting import patient_registry

logger = logging.getLogger(__name__)


class FoldProcessors:
    """Creates a processor for each fold of a source, and one for each retired fold.

    Raises:
        ConfigurationError: A format needs a package that is not installed, or a schema registry that the settings do not name.
    """

    def __init__(self, context: FoldContext) -> None:
        self._context = context
        self._folds: dict[str, list[Fold]] = {}
        for fold in context.settings.folds:
            self._folds.setdefault(fold.source, []).append(fold)
        settings = context.settings
        formats = [fold.format for fold in settings.folds]
        self._schemas = patient_registry(settings, formats, context.clock, context.status)
        registry = None if self._schemas is None else self._schemas.registry
        core = native_core(settings.worker.native)
        if core is None:
            logger.info("native core not used choice=%s", settings.worker.native)
        else:
            logger.info("native core used version=%s", core.VERSION)
        self._readers = {fold.name: reader_of(fold, settings.limits, registry, core) for fold in settings.folds}

    @property
    def topics(self) -> Collection[str]:
        return self._folds.keys()

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, Processor]:
        context, folds = self._context, self._folds[tp.topic]
        gone = sorted(set(committed) - {fold.name for fold in folds})
        _check_size(tp, folds, gone)
        readers = {fold.name: self._readers[fold.name] for fold in folds}
        decoded_batches = DecodedBatchCache(context.settings.app_id, readers, context.settings.limits, self._schemas)
        made: dict[str, Processor] = {}
        for fold in folds:
            shard = Shard(fold, tp, self._store(tp, fold.name))
            made[fold.name] = FoldProcessor(shard, decoded_batches, context)
        for name in gone:
            made[name] = RetiredFoldProcessor(self._store(tp, name), context)
        return made

    def is_paused(self, topic: str) -> bool:
        return explains_folding(self._folds[topic], self._context.status)

    def _store(self, tp: TP, fold: str) -> ShardStore:
        keys = shard_keys(self._context.settings.app_id, fold, tp.topic, tp.partition)
        return ShardStore(self._context.scripts, keys)


def _check_size(tp: TP, folds: Collection[Fold], gone: Collection[str]) -> None:
    latest = [fold.name for fold in folds if fold.start == "latest"]
    fault = too_long(tp.topic, [*(fold.name for fold in folds), *gone], latest)
    if fault is not None:
        advice = [
            f"`streams-app reset --fold {name}` removes the position of a fold that is not declared any more" for name in gone
        ]
        raise ConfigurationError([fault, *advice])
