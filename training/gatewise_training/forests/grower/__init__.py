"""The growth of single trees on coded columns, compiled; one idea a module."""
