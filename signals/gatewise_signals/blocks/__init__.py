"""Feature blocks: built-in ones, functions, and parts of networks."""
