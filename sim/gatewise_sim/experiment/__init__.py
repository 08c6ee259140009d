"""One simulation, its baselines and sweeps of them; the demo is one of its settings."""
