"""Pages and tables of a sweep."""
