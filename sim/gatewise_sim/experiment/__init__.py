"""One simulation and its baselines; the demo is one of its settings."""
