"""Public names of ``gatewise``, with one file for each package that defines them.

``lazy_loader`` can only attach names from inside its own package. These files are therefore the
only place where ``gatewise`` imports the packages above it. Each file is imported when one of its
names is first used.
"""
