"""Plots of reports, as SVG in the colours of the page."""
