"""The files of the checkout as tests and `make` read and write them: imports, rooms, changes, pages, generated tables."""
