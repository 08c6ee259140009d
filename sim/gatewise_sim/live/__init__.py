"""Live engine: broker, workers and devices as processes on this machine."""
