"""Random forests with a low cost of features, by growth or by pruning."""
