"""The archive of answered instances: shards, labels, and estimates of the true accuracy."""
