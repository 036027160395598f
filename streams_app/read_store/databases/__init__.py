"""Connections to databases, which sources and targets share."""
