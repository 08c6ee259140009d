"""Load for a worker, and a bare client for comparison."""
