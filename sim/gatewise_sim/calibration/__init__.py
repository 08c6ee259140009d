"""How long things take on real machines, for virtual time: assumed, measured, or from a file."""
