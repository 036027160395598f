"""What this project does to Faust and aiokafka: ranges, seeks, commits, its own producer, dead letters."""
