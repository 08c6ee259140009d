"""Blocks of signals as C99: fixed memory, steps computed when a feature is acquired."""
