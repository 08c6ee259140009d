"""High-cost models, and the backends that run them."""
