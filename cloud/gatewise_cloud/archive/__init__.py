"""The archive of a worker, which stores answered instances and labels for them."""
