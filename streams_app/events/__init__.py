"""Declares, encodes and publishes events: a declaration determines the type, key, topic and headers of an event.

`declaration`, `payloads` and `folded` are pure.
"""
