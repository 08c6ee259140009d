"""A worker that keeps the instances that it answers."""
