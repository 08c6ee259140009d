"""Training data: files, tables, checks, splits of rows."""
