"""Tests of the console against real servers, and in Chromium."""
