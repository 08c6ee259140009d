"""Checks of an installation and of a device's connection to its cloud."""
