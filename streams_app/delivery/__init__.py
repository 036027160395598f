"""Who owns a partition, what of it is handed to whom, and what is committed: the same for everything that reads a topic here."""
