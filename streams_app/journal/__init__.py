"""Journals: every event of a key, kept in Redis by UTC day, compressed once its day is over, removed by age and size.

``core`` decides and encodes (pure), ``store`` keeps the state in Redis, ``agents`` fill it from Kafka in the worker.
"""
