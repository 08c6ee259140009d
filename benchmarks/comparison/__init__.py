"""Accuracy against cost: the project's methods, the peers, and what their points say."""
