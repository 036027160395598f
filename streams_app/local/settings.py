"""Settings of an application that has none of its own where it runs without servers."""

from __future__ import annotations

from collections.abc import Sequence

from streams_app.fold import Fold
from streams_app.settings import Settings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.subscriber import Records


def settings_of(app_id: str, catalogue: Catalogue, folds: Sequence[Fold] = ()) -> Settings:
    """Defaults for all but the name.

    Args:
        app_id: Name of the application.
        catalogue: A fold whose records it takes has a stand-in, unless it is given.
        folds: The folds that are there.
    """
    known = {fold.name for fold in folds}
    wanted = dict.fromkeys(one.source.fold for one in catalogue.subscribers if isinstance(one.source, Records))
    stand_ins = [
        Fold(name=name, source=f"{name}.source", output=name, group_key="key", changed="changed", quiet_period="1m")
        for name in wanted
        if name not in known
    ]
    # Not checked: an application has at least one fold, and events without any do well here.
    return Settings.model_construct(app_id=app_id, folds=(*folds, *stand_ins))
