"""Keeps the read side in sync with what was folded: only the changed names, and never back in time.

``core`` decides (pure), ``sources`` know the current values, ``targets`` write them, ``databases`` are the connections of both, and
``agents`` are what a worker runs.
"""
