"""Functions that consume events: each has progress, retries, dead letters and metrics of its own.

`declaration`, `retries`, `received` and `catalogue` are what users write; `window`, `note`, `retrying` and `order` decide. None of
them touches anything. `store` keeps in Redis what was begun, and which ids were seen.
"""
