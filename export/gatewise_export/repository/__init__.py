"""Repository of releases for devices, by The Update Framework."""
