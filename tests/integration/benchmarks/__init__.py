"""Integration tests of the benchmarks."""
