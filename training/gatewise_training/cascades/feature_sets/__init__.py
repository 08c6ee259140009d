"""Searches for nested feature sets, which are the features of the stages."""
