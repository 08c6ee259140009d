"""Plots of reports, sweeps and comparisons: matplotlib's SVG in the page's own colours."""
