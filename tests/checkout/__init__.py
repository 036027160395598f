"""The files of the checkout as tests and `make` read and write them: imports, packages, changes, pages, generated tables."""
