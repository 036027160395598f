"""Journals in a worker: what files events, compresses what is over and removes what is old."""
