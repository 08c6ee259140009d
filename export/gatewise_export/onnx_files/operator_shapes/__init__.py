"""Shapes of operators' results, one rule a kind of operator."""
