"""Access to Redis for workers and commands: connections, failover, rights, and explanations of errors."""
