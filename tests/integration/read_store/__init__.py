"""Tests of every database and shape of a read store, and of the commands for read stores; each subfolder tests one package."""
