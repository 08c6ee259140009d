"""Instances that workers keep: shards, labels of people, and estimates of the truth."""
