"""Functions that are called for each event of a topic, each with progress, retries, dead letters and metrics of its own.

The rooms, each of which imports only from those before it:

* ``declaration``: what users write, and what the settings make of it (pure, but for importing the catalogue).
* ``state``: what outlives a process: finished offsets, commit metadata, and the keys and scripts in Redis.
* ``execution``: executor slots, queues, retries, dead letters and metrics; which event is next.
* ``guarantees``: at least once, deduplicated, at most once: the records before and after an attempt.
* ``running``: the processor of one partition, the consumer of one subscriber, all subscribers of a worker.
"""
