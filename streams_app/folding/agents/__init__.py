"""The running parts of folding: processors, claim, emission, retired folds, snapshots of shards, lag."""
