"""Live views: the current state that a page shows, of a topic or of its open browser tabs.

``core`` decides (pure), ``store`` keeps the state in Redis, ``agents`` fills it from Kafka in the worker, ``hub`` serves browsers.
"""
