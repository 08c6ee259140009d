"""Live engine, which runs broker, workers and devices as processes on this machine."""
