"""Brokers: started, secured, and asked about a fleet for a rollout."""
