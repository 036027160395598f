"""What runs in a worker for each store.

``sync`` is one pass, ``processor`` is what the delivery hands the output topics to, and ``agent`` is the member of a group of its
own that reads them, so that a store that is down never delays folding.
"""
