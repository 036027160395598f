"""What is decided about changes and values, without touching the world (pure).

``record`` reads a folded record, ``merge`` keeps the newest change of each cell, ``values`` are values as each kind of store holds
them, ``rows`` finds the row of a query that belongs to a change, ``named_parameters`` numbers the parameters of a query.
"""
