"""Settings of the documentation site; `make docs` writes it into site/."""

project = "Gatewise"
project_copyright = "2026, the Gatewise authors"
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
exclude_patterns = ["**/*.json"]
html_theme = "furo"
html_title = "Gatewise"
html_show_sourcelink = False
html_copy_source = False
myst_heading_anchors = 4
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
