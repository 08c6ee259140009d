"""Models that a fit trains: boosted trees, forests, kernel machines, high-cost models."""
