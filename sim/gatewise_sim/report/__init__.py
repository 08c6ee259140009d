"""Reports of runs: the typed document, its page, tables, plots and comparisons."""
