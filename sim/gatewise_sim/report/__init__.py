"""Reports of runs: the typed document, its page, tables and plots."""
