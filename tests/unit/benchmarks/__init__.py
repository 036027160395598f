"""Unit tests of the benchmarks."""
