"""Declares, encodes and publishes events: a declaration determines the type, key, topic and headers of an event.

Modules that are marked as pure in their first line do no input or output.
"""
