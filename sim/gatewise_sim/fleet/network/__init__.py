"""Links of a fleet: what they delay, when they fail, and a proxy that does it to real bytes."""
