"""Functions of the commands for operators, which run outside a worker.

Queries read Redis and Kafka. Some actions request a change from the owner of a shard; others, such as resets, change the state
themselves.

If a server that a function needs does not answer, the function raises :class:`~streams_app.errors.TryAgainError`, or the error of
the client that it was given. If the settings cannot be used for it, a right is missing, or what it works on does not exist (a
topic, a partition, a group, the tables of a store), it raises :class:`~streams_app.errors.ConfigurationError`. A docstring lists
these errors only if there is more to say.
"""
