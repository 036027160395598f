"""Reads journals: in Python, over HTTP, and for the commands."""
