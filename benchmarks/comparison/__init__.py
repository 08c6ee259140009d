"""Comparison of accuracy and cost between this project's methods and their peers."""
