"""Functions that consume events: each has progress, retries, dead letters and metrics of its own.

`window`, `note`, `retrying` and `order` decide and touch nothing.
"""
