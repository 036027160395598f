"""Live views: what a page shows now, of a topic or of who has it open.

``core`` decides (pure), ``store`` keeps the state in Redis, ``agents`` fill it from Kafka in the worker.
"""
