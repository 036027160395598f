"""Recommends a quiet period: replays stored events with a virtual clock, for many candidates."""
