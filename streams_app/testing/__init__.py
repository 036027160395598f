"""Test kits for what users declare: folds under a virtual clock, without Kafka, Redis and waiting."""

from streams_app.testing.folds import START_MS, DeadLetter, FoldTester, Record

__all__ = ["START_MS", "DeadLetter", "FoldTester", "Record"]
