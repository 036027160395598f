"""Reads what the pages of the console show, for all browsers together."""
