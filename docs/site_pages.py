"""Gather the pages of the documentation site in a folder, for Sphinx.

    python docs/site_pages.py build/docs

Pages are the files of docs/, the results, and a few files of the repository; the reference comes
from the packages' public names, the commands from their own help. Links between files of the
repository become links between pages, or links to the repository where a file has no page.
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
from pathlib import Path
from typing import Any

import matplotlib as mpl

from gatewise import cli

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/gatewise/gatewise"
PAGES_ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploying.md",
    "benchmarks/README.md": "results/index.md",
}
PACKAGES = {
    "gatewise": "what all share, and the facade `import gatewise as gw`",
    "gatewise_signals": "blocks: features computed from signals and pictures",
    "gatewise_training": "cascades, Adapt, CEGB, budgeted forests, operating points",
    "gatewise_export": "bundles, ONNX, C99",
    "gatewise_edge": "the device",
    "gatewise_cloud": "workers and brokers",
    "gatewise_sim": "simulated fleets and reports",
}
#: Documented by scikit-learn.
FOREIGN_BASES = "BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin"
FOREIGN_MEMBERS = ["get_metadata_routing", "set_output"] + [
    f"set_{method}_request" for method in ("fit", "predict", "score", "transform")
]


def main(folder: Path) -> None:
    """Write all pages into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in sources():
        there = folder / page_of(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.suffix == ".md":
            there.write_text(linked(with_tables((ROOT / source).read_text()), source))
        else:
            shutil.copyfile(ROOT / source, there)
    (folder / "reference").mkdir()
    for package in PACKAGES:
        (folder / f"reference/{package}.md").write_text(reference(package))
    (folder / "commands.md").write_text(commands())
    (folder / "gallery.md").write_text(gallery(folder / "gallery"))


def sources() -> list[str]:
    """Files of the repository that have a page, or stand beside one."""
    kinds = (".md", ".json", ".svg", ".png")
    found = [p for p in (ROOT / "docs").rglob("*") if p.suffix in kinds]
    found += [p for p in (ROOT / "benchmarks/results").rglob("*") if p.suffix in (".md", ".svg")]
    return [*PAGES_ELSEWHERE, *sorted(p.relative_to(ROOT).as_posix() for p in found)]


def page_of(source: str) -> str:
    """Path of a file within the site."""
    if source in PAGES_ELSEWHERE:
        return PAGES_ELSEWHERE[source]
    path = source.removeprefix("docs/").replace("benchmarks/results/", "results/")
    return path.replace("README.md", "index.md")


def with_tables(text: str) -> str:
    """Put in the first table of a results page where a comment names the page."""

    def table(comment: re.Match[str]) -> str:
        lines = (ROOT / comment[1]).read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("|"))
        rest = lines[start:]
        end = next((i for i, line in enumerate(rest) if not line.startswith("|")), len(rest))
        return "\n".join(rest[:end])

    return re.sub(r"<!-- table: (\S+) -->", table, text)


def linked(text: str, source: str) -> str:
    """Turn a file's links to files of the repository into links of its page."""
    known, here = sources(), posixpath.dirname(page_of(source))

    def link(found: re.Match[str]) -> str:
        target, hash_, anchor = found[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in known:
            there = posixpath.relpath(page_of(path), here or ".")
        else:
            there = f"{REPOSITORY}/blob/main/{path}"
        return f"]({there}{hash_}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def reference(package: str) -> str:
    """The page of a package's public names; a name of the facade leads to its own package."""
    module = import_module(package)
    parts = [f"# {package}\n\n{PACKAGES[package][0].upper()}{PACKAGES[package][1:]}.\n"]
    handed_on = []
    for name in sorted(module.__all__):
        member = getattr(module, name)
        home = (getattr(member, "__module__", None) or package).partition(".")[0]
        if home != package and home in PACKAGES and name in import_module(home).__all__:
            handed_on.append(f"{{py:obj}}`{name} <{home}.{name}>`")
        else:
            parts.append(f"```{{eval-rst}}\n{directive(package, name, member)}\n```\n")
    if handed_on:
        parts.insert(1, f"From other packages: {', '.join(handed_on)}.\n")
    return "\n".join(parts)


def directive(package: str, name: str, member: Any) -> str:
    """The directive of Sphinx that documents a name."""
    if not inspect.isclass(member):
        return f".. auto{'function' if callable(member) else 'data'}:: {package}.{name}"
    options = [
        "members:",
        f"inherited-members: {FOREIGN_BASES}",
        f"exclude-members: {', '.join(FOREIGN_MEMBERS)}",
    ]
    if issubclass(member, BaseException | tuple | dict):
        options = ["members:"]
    return "\n   :".join([f".. autoclass:: {package}.{name}", *options])


def commands() -> str:
    """The page of the commands: what each prints as its help."""
    parts = ["# Commands\n"]
    for name, entry in cli.SUBCOMMANDS.items():
        shown = io.StringIO()
        with redirect_stdout(shown):
            cli.main([name, "--help"])
        text = shown.getvalue().strip()
        parts.append(f"## gatewise {name}\n\n{entry.help}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def gallery(folder: Path) -> str:
    """The page of the gallery: each script of examples/plots, and the plot that it draws."""
    folder.mkdir()
    mpl.use("agg")
    parts = ["# Gallery\n\nEach plot is drawn by the script below it when this site is built.\n"]
    for script in sorted((ROOT / "examples/plots").glob("*.py")):
        text = script.read_text()
        title, plot = ast.get_docstring(ast.parse(text)), f"{script.stem}.svg"
        with chdir(folder):
            runpy.run_path(str(script))
        parts.append(f"## {title}\n\n![{title}](gallery/{plot})\n\n```python\n{text}```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
