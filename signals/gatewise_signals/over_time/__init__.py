"""Decisions on windows that follow each other: smoothed labels, and figures of events."""
