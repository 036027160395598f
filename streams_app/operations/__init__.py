"""Functions of the commands for operators, which run outside a worker.

Queries read Redis and Kafka. Some actions request a change from the owner of a shard; others, such as resets, change the state
themselves.
"""
