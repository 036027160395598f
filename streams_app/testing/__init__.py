"""Test kits for what users declare: folds and subscribers under a virtual clock, without Kafka, Redis and waiting."""

from streams_app.testing.folds import START_MS, DeadLetter, FoldTester, Record
from streams_app.testing.seen import Letter, Run, UnseenLettersError
from streams_app.testing.subscribers import SubscriberTester

__all__ = ["START_MS", "DeadLetter", "FoldTester", "Letter", "Record", "Run", "SubscriberTester", "UnseenLettersError"]
