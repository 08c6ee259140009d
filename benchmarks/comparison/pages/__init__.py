"""Pages of the comparison, one module for each, and its plots."""
