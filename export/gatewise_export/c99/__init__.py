"""A fitted system or a bundle as C99: no heap, tables in flash, a callback for the features."""
