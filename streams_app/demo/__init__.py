"""The demo: a realistic load of post metrics on this machine, folded, synced and checked.

``load`` and ``replay`` create the events, ``write_side`` is the service that owns the post metrics, ``observer`` counts the output,
``view`` shows it, and ``run`` combines these modules with a real worker process.
"""
