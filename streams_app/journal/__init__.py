"""Journals: every event of a key, stored in Redis by UTC day, compressed after its day, and removed by age and size.

``core`` decides and encodes (pure), ``store`` has the state in Redis, ``agents`` fill journals from Kafka in a worker, and
``reading`` reads them.
"""
