"""Train a new release on old rows and kept instances, and compare it with the old release."""
