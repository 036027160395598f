"""The command ``demo``: a worker on this machine folds a realistic load of events, whose output is shown and checked.

An event reports new metrics (likes, shares, ...) of a post in a social network. The events of an account are one group.

``load`` and ``replay`` supply the events. ``write_side`` is the service that owns the post metrics. ``observer`` counts the output,
and ``view`` shows the numbers. ``run`` combines these modules with a real worker process.
"""
