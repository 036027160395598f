"""Real servers for the tests, fetched once into the git-ignored `.cache/` of the checkout: `python -m tests.servers`."""
