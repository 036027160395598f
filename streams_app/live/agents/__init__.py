"""The part of the worker that fills live views."""
