"""Functions that are called for each event of a topic, each with its own progress, retries, dead letters and metrics.

Subpackages, in import order (each imports only from those before it):

* ``declaration``: what users declare, combined with the settings. It is pure, except for importing the catalogue.
* ``state``: the state that outlives a process: finished offsets, commit metadata, keys and scripts in Redis.
* ``execution``: chooses the next event and runs it: executor slots, queues, retries, dead letters and metrics.
* ``guarantees``: at least once, deduplicated and at most once: what is stored before and after an attempt.
* ``running``: the processor of one partition, the consumer of one subscriber, and all subscribers of a worker.
"""
