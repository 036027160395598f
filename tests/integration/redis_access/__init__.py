"""Tests of `streams_app.redis_access`, and of a whole application, on Redis as it is deployed: Sentinel, Cluster, few rights."""
