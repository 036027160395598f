"""The demo: a realistic storm of post metrics on this machine, folded, synced and checked.

``load`` and ``replay`` make the events (pure), ``write_side`` is the service that owns the post metrics, ``observer`` counts what
comes out, ``view`` shows it, ``run`` puts them together around a real worker process.
"""
