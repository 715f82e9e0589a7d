"""Sphinx makes a site of these pages: ``scripts/build_site``. They are Markdown, and read well without."""

import re
from pathlib import Path
from typing import Any

project = "snapconv"
author = "the snapconv authors"
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["examples"]
# Links to headings are those of the files on a forge; one that leads nowhere is an error.
myst_heading_anchors = 4
nitpicky = True

html_theme = "pydata_sphinx_theme"
html_title = "snapconv"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navbar_center": [], "secondary_sidebar_items": ["page-toc"]}
html_sidebars = {
    "**": ["globaltoc.html"]
}  # all pages; by itself the theme has only those of one section

_HERE = Path(__file__).parent
_FOLDERS = ("guide", "reference", "design")


def setup(app: Any) -> None:
    """Have the navigation made out of the links of the first page."""
    app.connect("source-read", _add_navigation)


def _add_navigation(_app: Any, page: str, source: list[str]) -> None:
    """Append a hidden table of contents for every folder, with the pages that this one names first."""
    if page != root_doc:
        return
    for folder in _FOLDERS:
        named = re.findall(rf"\]\(({folder}/[\w-]+)\.md", source[0])
        there = sorted(f"{folder}/{path.stem}" for path in (_HERE / folder).glob("*.md"))
        named = list(dict.fromkeys((*named, *there)))
        lines = ("```{toctree}", ":hidden:", f":caption: {folder.capitalize()}", *named, "```")
        source[0] += "\n\n" + "\n".join(lines) + "\n"
