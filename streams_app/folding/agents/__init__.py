"""What runs: the processor of a fold and its claim, emission, folds that are no longer declared, and what gauges show of them."""
