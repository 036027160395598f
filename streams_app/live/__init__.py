"""Live views: the current state of a topic, or of the open browser tabs, for web pages.

``core`` has the rules (pure), ``store`` stores the state in Redis, ``agents`` update it from Kafka in the worker, and ``hub``
serves browsers.
"""
