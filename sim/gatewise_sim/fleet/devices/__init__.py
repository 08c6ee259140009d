"""Devices in virtual time."""
