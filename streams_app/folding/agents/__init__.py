"""The tasks of folding in a worker: processors, claim, emission, retired folds, snapshots of shards, lag."""
