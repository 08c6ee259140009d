"""Operating points: thresholds, the frontier, guarantees and bounds on classes, bytes and cost."""
