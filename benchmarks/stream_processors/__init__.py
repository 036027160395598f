"""The same sessions folded by Flink, Kafka Streams and Bytewax: `make bench ARGS="--processors flink,kafka-streams,bytewax"`."""
