"""Sections of the page of budgeted trees, one module for each part of trees.json."""
