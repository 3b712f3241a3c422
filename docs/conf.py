"""How Sphinx makes the site out of the pages: `make site`. The navigation follows the folders, and its titles the pages."""

import re

from sphinx.application import Sphinx

project = "Tranche"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*", "build", "dist", "src", "tests"]
root_doc = "docs/index"
nitpicky = True
smartquotes = False  # two hyphens are an option's
suppress_warnings = ["misc.highlighting_failure"]  # a console block may show a command over several lines
myst_heading_anchors = 6  # as a forge names them

html_theme = "furo"
html_title = "Tranche"
html_copy_source = False
html_use_index = False
html_show_copyright = False

TUTORIALS = (
    "getting-started",
    "fractions",
    "dynamic-mig",
    "static-mig-walkthrough",
    "test-cluster",
)
"""The guides to read from top to bottom. Every other guide is a how-to."""
PROJECT = ("CONTRIBUTING", "SECURITY", "CHANGELOG")


def section(page: str) -> str:
    """Where a page stands in the navigation; empty for a page in a folder that no section knows."""
    folder, _, name = page.rpartition("/")
    if folder == "docs/guides":
        return "Tutorials" if name in TUTORIALS else "How-to guides"
    if page == "docs/architecture":
        return "Concepts"
    if folder == "":
        return "Project" if name in PROJECT else "Start"
    known = {"docs": "Start", "docs/concepts": "Concepts", "docs/reference": "Reference", "docs/runbooks": "Runbooks"}
    return known.get(folder, "")


def navigation(index: str, pages: set[str]) -> str:
    """The contents of each section, in the order in which the index names its pages, then by name."""
    named = [f"docs/{link}" for link in re.findall(r"\]\(([\w/-]+)\.md\)", index)]
    order = [page for page in dict.fromkeys(["README", *named, *sorted(pages)]) if page in pages and page != root_doc]
    return "".join(
        f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n:titlesonly:\n\n"
        + "".join(f"/{page}\n" for page in order if section(page) == caption)
        + "```\n"
        for caption in ("Start", "Tutorials", "How-to guides", "Concepts", "Reference", "Runbooks", "Project")
    )


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the navigation below the index, which a forge shows without it."""
    if page == root_doc:
        source[0] += navigation(source[0], set(app.env.found_docs))


def setup(app: Sphinx) -> None:
    """What Sphinx calls when it starts."""
    app.connect("source-read", add_navigation)
