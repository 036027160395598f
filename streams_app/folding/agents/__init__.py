"""What runs: partitions that are owned, claims, emission, folds that are no longer declared, gauges."""
