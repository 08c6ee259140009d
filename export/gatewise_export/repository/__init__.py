"""Publish releases to devices with The Update Framework (TUF)."""
