"""Read stores: tables and indices that are kept in sync with the output of folds.

``core`` has the rules (pure) and the ports. Each database has a folder: ``sqlite``, ``postgresql``, ``mysql``, ``opensearch``.
``registry`` finds the database that a URL names, ``python_source`` gets values from a user's function, and ``sync`` is the part of
a worker that writes to the stores.
"""
