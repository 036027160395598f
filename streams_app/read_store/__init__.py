"""Read stores: tables and indices that are kept in sync with the output of folds.

``core`` decides (pure) and defines the ports. Each database has a folder: ``sqlite``, ``postgresql``, ``opensearch``.
``registry`` finds the database that a URL names, ``python_source`` calls a function for values, and ``sync`` is what a worker runs.
"""
