"""Fitted systems for people: summaries, plots, explanations of one answer."""
