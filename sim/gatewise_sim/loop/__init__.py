"""A simulated fleet that learns: days of kept instances, labels, estimates, refits and releases."""
