"""What stands in the place of Faust's manager of tables: this application has none, and keeps its state in Redis."""

from __future__ import annotations

from faust.tables.manager import TableManager


class NoTables(TableManager):
    """Faust subscribes to topics once its tables are registered, and waits a second for them to be declared.

    A worker would join its group a second later for nothing.
    """

    async def on_start(self) -> None:
        """Says at once that all tables, of which there are none, are known, and starts what resumes after a rebalance."""
        self._tables_finalized.set()
        self._tables_registered.set()
        await self.recovery.start()
