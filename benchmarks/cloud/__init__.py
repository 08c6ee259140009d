"""Load for a worker, and a bare client beside it."""
