"""Write the pages of the documentation site into a folder, for Sphinx.

    python docs/site_pages.py build/docs

Pages are the files of docs/, the results, and a few files of the repository. The reference is made
from the packages' public names, and the page of commands from their help. A link to a file of the
repository becomes a link to its page, or to the repository if the file has no page.
"""

from __future__ import annotations

import ast
import inspect
import io
import posixpath
import re
import runpy
import shutil
import sys
from contextlib import chdir, redirect_stdout
from importlib import import_module
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import matplotlib as mpl

from gatewise import cli

ROOT = Path(__file__).parents[1]
REPOSITORY_URL = "https://github.com/gatewise/gatewise"
#: Page of each file outside docs/ and the results that has one.
PAGE_OF_FILE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploying.md",
    "benchmarks/README.md": "results/index.md",
}
#: Purpose of each package.
PACKAGES = {
    "gatewise": "code that all packages share, and the facade `import gatewise as gw`",
    "gatewise_signals": "blocks: features computed from signals and pictures",
    "gatewise_training": "cascades, Adapt, CEGB, budgeted forests, operating points",
    "gatewise_export": "bundles, ONNX, C99",
    "gatewise_edge": "the device",
    "gatewise_cloud": "workers and brokers",
    "gatewise_sim": "simulated fleets and reports",
}
#: Base classes whose members scikit-learn documents.
SKLEARN_BASES = "BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin"
#: Members that scikit-learn adds to an estimator.
SKLEARN_MEMBERS = ["get_metadata_routing", "set_output"] + [
    f"set_{method}_request" for method in ("fit", "predict", "score", "transform")
]


def main(folder: Path) -> None:
    """Write all pages into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in list_sources():
        page = folder / page_path(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            page.write_text(convert_links(insert_tables((ROOT / source).read_text()), source))
        else:
            shutil.copyfile(ROOT / source, page)
    (folder / "reference").mkdir()
    for package in PACKAGES:
        (folder / f"reference/{package}.md").write_text(reference_page(package))
    (folder / "commands.md").write_text(commands_page())
    (folder / "gallery.md").write_text(gallery_page(folder / "gallery"))


def list_sources() -> list[str]:
    """List the files of the repository that are pages, or pictures and schemas of pages."""
    suffixes = (".md", ".json", ".svg", ".png")
    paths = [path for path in (ROOT / "docs").rglob("*") if path.suffix in suffixes]
    paths += [
        path for path in (ROOT / "benchmarks/results").rglob("*") if path.suffix in (".md", ".svg")
    ]
    return [*PAGE_OF_FILE, *sorted(path.relative_to(ROOT).as_posix() for path in paths)]


def page_path(source: str) -> str:
    """Return the path within the site of a file of the repository."""
    if source in PAGE_OF_FILE:
        return PAGE_OF_FILE[source]
    path = source.removeprefix("docs/").replace("benchmarks/results/", "results/")
    return path.replace("README.md", "index.md")


def insert_tables(text: str) -> str:
    """Replace each comment that names a results page by the first table of that page."""

    def read_table(comment: re.Match[str]) -> str:
        lines = (ROOT / comment[1]).read_text().splitlines()
        table_and_rest = dropwhile(lambda line: not line.startswith("|"), lines)
        return "\n".join(takewhile(lambda line: line.startswith("|"), table_and_rest))

    return re.sub(r"<!-- table: (\S+) -->", read_table, text)


def convert_links(text: str, source: str) -> str:
    """Convert a file's links to files of the repository into links of its page."""
    sources = list_sources()
    page_folder = posixpath.dirname(page_path(source)) or "."

    def convert_link(link: re.Match[str]) -> str:
        target, hash_sign, anchor = link[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        new_target = f"{REPOSITORY_URL}/blob/main/{path}"
        if path in sources:
            new_target = posixpath.relpath(page_path(path), page_folder)
        return f"]({new_target}{hash_sign}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", convert_link, text)


def reference_page(package: str) -> str:
    """Make the page of a package's public names; names of other packages are links."""
    module = import_module(package)
    directives = []
    links = []
    for name in sorted(module.__all__):
        member = getattr(module, name)
        home = (getattr(member, "__module__", None) or package).partition(".")[0]
        if home != package and home in PACKAGES and name in import_module(home).__all__:
            links.append(f"{{py:obj}}`{name} <{home}.{name}>`")
        else:
            directives.append(f"```{{eval-rst}}\n{sphinx_directive(package, name, member)}\n```\n")
    purpose = PACKAGES[package]
    introduction = [f"# {package}\n\n{purpose[0].upper()}{purpose[1:]}.\n"]
    if links:
        introduction.append(f"From other packages: {', '.join(links)}.\n")
    return "\n".join([*introduction, *directives])


def sphinx_directive(package: str, name: str, member: Any) -> str:
    """Make the directive of Sphinx that documents a name."""
    if not inspect.isclass(member):
        return f".. auto{'function' if callable(member) else 'data'}:: {package}.{name}"
    options = [
        "members:",
        f"inherited-members: {SKLEARN_BASES}",
        f"exclude-members: {', '.join(SKLEARN_MEMBERS)}",
    ]
    if issubclass(member, BaseException | tuple | dict):
        options = ["members:"]
    return "\n   :".join([f".. autoclass:: {package}.{name}", *options])


def commands_page() -> str:
    """Make the page with the help of each command."""
    sections = ["# Commands\n"]
    for name, subcommand in cli.SUBCOMMANDS.items():
        output = io.StringIO()
        with redirect_stdout(output):
            cli.main([name, "--help"])
        help_text = output.getvalue().strip()
        sections.append(f"## gatewise {name}\n\n{subcommand.help}\n\n```text\n{help_text}\n```\n")
    return "\n".join(sections)


def gallery_page(folder: Path) -> str:
    """Make the page with each script of examples/plots and its plot, which `folder` gets."""
    folder.mkdir()
    mpl.use("agg")
    sections = ["# Gallery\n\nEach plot is drawn by the script below it when this site is built.\n"]
    for script in sorted((ROOT / "examples/plots").glob("*.py")):
        code = script.read_text()
        title = ast.get_docstring(ast.parse(code))
        with chdir(folder):
            runpy.run_path(str(script))
        plot = f"![{title}](gallery/{script.stem}.svg)"
        sections.append(f"## {title}\n\n{plot}\n\n```python\n{code}```\n")
    return "\n".join(sections)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
