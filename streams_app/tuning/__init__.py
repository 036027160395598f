"""The command ``tune``: computes the records, latency and memory of many candidate quiet periods, and recommends one.

It replays stored events of a topic, a file or a journal with a virtual clock, or uses the metrics of running workers.
"""
