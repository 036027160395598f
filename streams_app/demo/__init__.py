"""The demo: a realistic load of post metrics on this machine, folded, synced and checked.

``load`` and ``replay`` supply the events. ``write_side`` is the service that owns the post metrics. ``observer`` counts the output,
and ``view`` shows the numbers. ``run`` combines these modules with a real worker process.
"""
