"""Models and a fresh process of a device."""
