"""What benchmarks keep between runs: whole files, and the version of the code behind them."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".bench-cache"
OURS = ("benchmarks", "gatewise_training")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".part") as file:
        file.write(text)
    Path(file.name).chmod(0o644)  # temporary files are for their maker alone
    Path(file.name).replace(path)


@lru_cache(maxsize=64)
def code_version(module: str) -> str:
    """Hash of a module's code and of all of ours that it imports, however far away."""
    sources: dict[str, str] = {}
    waiting = [module, "benchmarks.comparison.record"]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if name in sources or path is None:
            continue
        text = path.read_text()
        tree = ast.parse(text)
        # documentation does not decide a result
        sources[name] = hashlib.sha256(ast.dump(_bare(tree)).encode()).hexdigest()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
    together = json.dumps(sorted(sources.items()))
    return hashlib.sha256(together.encode()).hexdigest()[:16]


def _source(name: str) -> Path | None:
    if name.split(".")[0] not in OURS:
        return None
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None):
        return _module(loaded.__file__)
    try:
        module_spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if module_spec is None:  # what a package hands on: the module that it is from
        package, _, public = name.rpartition(".")
        home = getattr(getattr(importlib.import_module(package), public, None), "__module__", "")
        return _source(home) if home else None
    return _module(module_spec.origin)


def _module(path: str | None) -> Path | None:
    """A module's file; not a package's, which hands on names of all and decides nothing."""
    return None if path is None or Path(path).name == "__init__.py" else Path(path)


def _bare(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        statements = [
            n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        ]
        node.body = statements or [ast.Pass()]  # type: ignore[attr-defined]
    return tree
