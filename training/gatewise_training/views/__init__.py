"""Fitted systems for people: summaries, plots and explanations of answers."""
