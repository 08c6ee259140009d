"""A worker, which answers devices' requests with high-cost models in batches."""
