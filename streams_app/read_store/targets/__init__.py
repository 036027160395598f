"""Where changes are written: ``port`` is what a store can do, ``choice`` finds the store of a URL, the others are a store each."""
