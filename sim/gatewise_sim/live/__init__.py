"""A fleet for real: broker, workers and devices as processes on this machine."""
