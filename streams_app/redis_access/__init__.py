"""How the worker and the commands reach Redis: connections, failover, rights, and what errors mean."""
