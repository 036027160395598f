"""The part of a worker that keeps one store in sync.

``store_sync`` is one pass: records in, current values out, one transaction. ``processor`` applies the delivery protocol to one
partition, and ``agent`` is the member of the store's own consumer group, so that a store that is down never delays folding.
"""
