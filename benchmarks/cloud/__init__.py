"""Load generator for a worker, and a bare responder for comparison."""
