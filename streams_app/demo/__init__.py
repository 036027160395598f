"""The demo: a realistic load of post metrics on this machine, folded, synced and checked.

``load`` and ``replay`` create the events (pure), ``write_side`` is the service that owns the post metrics, ``observer`` counts the
output, ``view`` shows it, and ``run`` combines them with a real worker process.
"""
