"""High-cost models: a bundle's own graph, Python objects and model servers."""
