"""Names that ``gatewise`` offers, one file for each package that defines them.

The stub loader takes names from inside its own package only, hence these files. They are the
one place where an import runs up, and each is loaded only when one of its names is used.
"""
