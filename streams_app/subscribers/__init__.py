"""Functions that consume events: each has progress, retries, dead letters and metrics of its own.

`declaration`, `retries`, `received` and `catalogue` are what users write. `window`, `note`, `retrying`, `order` and `work` decide
and touch nothing. `store` keeps in Redis what was begun, and which ids were seen; `runner`, `coroutines` and `threads` call the
functions; `processor` and `dispatcher` say which event is next, and `agent` is a subscriber as it runs in a worker.
"""
