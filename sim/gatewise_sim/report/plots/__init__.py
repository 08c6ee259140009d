"""Plots of reports: matplotlib's SVG in the page's own colours."""
