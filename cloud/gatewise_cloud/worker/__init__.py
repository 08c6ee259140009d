"""A worker: requests from the broker, batches, responses, counts and audits."""
