"""Replaces Faust's table manager: this application has no tables, because its state is in Redis.

This module stands alone, as each replaced part of Faust does in this folder; the reasons are in ``patches/README.md``.
"""

from __future__ import annotations

from faust.tables.manager import TableManager


class EmptyTableManager(TableManager):
    """A table manager without tables, for which Faust would wait one second before it subscribes to topics."""

    async def on_start(self) -> None:
        """Report at once that all tables are registered, and start Faust's service that resumes partitions after a rebalance."""
        self._tables_finalized.set()
        self._tables_registered.set()
        await self.recovery.start()
