"""Reports of runs: typed document, page, tables and plots."""
