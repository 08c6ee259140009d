"""Feature blocks: built-in blocks, Python functions and parts of networks."""
