"""Recommends a quiet period from evidence: replays events with a virtual clock for many candidates."""
