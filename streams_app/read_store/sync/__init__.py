"""The part of a worker that keeps one store in sync.

``store_sync`` writes the current values for a batch of records, usually in one transaction. ``processor`` applies the delivery
protocol to one partition. ``agent`` is the member of the store's own consumer group, so that an unavailable store never delays
folding.
"""
