"""Compares quiet periods for recorded events: fixed ones, one that is tuned daily, and one that is set while the events arrive."""
