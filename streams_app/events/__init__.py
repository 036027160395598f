"""Declared events: one declaration determines type, key, topic and headers of what is published.

`declaration`, `payloads` and `folded` are pure.
"""
