"""Live views: the current state of a topic, or of the open browser tabs, for web pages.

``core`` decides (pure), ``store`` keeps the state in Redis, ``agents`` fills it from Kafka in the worker, ``hub`` serves browsers.
"""
