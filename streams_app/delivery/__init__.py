"""Who owns a partition, what of it is handed to whom, and what is committed: the same for everything that reads a topic here.

To be read in this order: ``processor`` (what stands on this layer), ``host`` (what it stands on), ``ownership`` and ``claiming``,
``batch`` and ``ranges`` (the chain rule), ``marks`` and ``committing``, ``partition_clock`` and ``trusted_clock``.
"""
