"""Runs folds in a worker: claims partitions, folds their events, emits records, and measures lag and overdue time."""
