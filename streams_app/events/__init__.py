"""Events that are published as they are declared: type, key, topic and headers stand in one place.

`declaration`, `payloads` and `folded` are pure.
"""
