"""``python -m tests.chaos.stores``: a read store under faults of its server, judged against a recomputation.

Folded records arrive shuffled and twice; two processes ``streams-app worker --only`` sync them. At random seeded times, the run
kills a worker or the server. For PostgreSQL, it uses up all connections, fills the disk, or replaces the server by a copy without
the last transactions. For OpenSearch, it freezes the server, or makes its indices read-only. In the end every cell must have the
value of its highest version.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import click

from tests.chaos.run_series import run_all
from tests.chaos.stores_base import Run
from tests.chaos.stores_opensearch import OpenSearchGroupsRun, OpenSearchRun
from tests.chaos.stores_postgresql import PostgresRun

STORES: Final[dict[str, type[Run]]] = {
    "postgresql": PostgresRun,
    "opensearch": OpenSearchRun,
    "opensearch-groups": OpenSearchGroupsRun,
}


@click.command()
@click.option("--runs", default=5, show_default=True, help="Number of runs, each with its own seed.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first run.")
@click.option("--seconds", default=40.0, show_default=True, help="Duration of the load and the faults of a run.")
@click.option(
    "--store", type=click.Choice(list(STORES)), default="postgresql", show_default=True, help="Database, and layout of its tables."
)
@click.option("--faults", default=None, help="Only these, separated by commas.")
def main(runs: int, seed: int, seconds: float, store: str, faults: str | None) -> None:
    """Break a store and its server under load, and check that the store ends in the right state."""

    def perform(seed: int, folder: Path) -> tuple[Run, Coroutine[Any, Any, None]]:
        run = STORES[store](seed, folder, random.Random(seed))
        return run, run.perform(seconds, faults.split(",") if faults else list(run.faults_of))

    run_all("chaos-stores", range(seed, seed + runs), perform)


if __name__ == "__main__":
    main()
