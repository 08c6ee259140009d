"""Atomic result files, and hashes of the code that computed them.

Benchmarks compute a cached result again when the hash of its code has changed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from gatewise.console import as_json_value

CACHE = Path(__file__).parents[1] / ".bench-cache"
PROJECT_PACKAGES = ("benchmarks", "gatewise_training")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old text or the new text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".part") as file:
        file.write(text)
    Path(file.name).chmod(0o644)  # NamedTemporaryFile creates files with mode 0o600
    Path(file.name).replace(path)


def read_or_compute(path: Path, compute: Callable[[], Any]) -> Any:
    """Read a JSON file, after writing the result of `compute` into it if it does not exist."""
    if not path.is_file():
        write_whole(path, json.dumps(as_json_value(compute())))
    return json.loads(path.read_text())


@lru_cache(maxsize=64)
def code_version(module: str) -> str:
    """Hash of a module and of all project modules that it imports, directly or indirectly.

    Raises ValueError for a relative import, which it does not follow.
    """
    hash_of_module: dict[str, str] = {}
    # the record is included because results are stored in its form
    pending_names = [module, "benchmarks.comparison.record"]
    while pending_names:
        name = pending_names.pop()
        path = _source_file(name)
        if name in hash_of_module or path is None:
            continue
        tree = ast.parse(path.read_text())
        # docstrings and comments do not change a result
        syntax = ast.dump(_without_docstrings(tree))
        hash_of_module[name] = hashlib.sha256(syntax.encode()).hexdigest()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                raise ValueError(f"{path}, line {node.lineno}: write the import with its package")
            if isinstance(node, ast.ImportFrom) and node.module:
                pending_names += [
                    node.module,
                    *(f"{node.module}.{alias.name}" for alias in node.names),
                ]
            elif isinstance(node, ast.Import):
                pending_names += [alias.name for alias in node.names]
    hashes = json.dumps(sorted(hash_of_module.items()))
    return hashlib.sha256(hashes.encode()).hexdigest()[:16]


def _source_file(name: str) -> Path | None:
    """Find the file of a module of this project, or of the module that defines a public name."""
    if name.split(".")[0] not in PROJECT_PACKAGES:
        return None
    module = sys.modules.get(name)
    if module is not None and getattr(module, "__file__", None):
        return _module_file(module.__file__)
    try:
        module_spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if module_spec is None:  # a name that a package exports: find the module that defines it
        package, _, public_name = name.rpartition(".")
        defining_module = getattr(
            getattr(importlib.import_module(package), public_name, None), "__module__", ""
        )
        return _source_file(defining_module) if defining_module else None
    return _module_file(module_spec.origin)


def _module_file(path: str | None) -> Path | None:
    """Find the file of a module; None for a package, which only exports names of its modules."""
    return None if path is None or Path(path).name == "__init__.py" else Path(path)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        statements = [
            statement
            for statement in body
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        ]
        node.body = statements or [ast.Pass()]  # type: ignore[attr-defined]
    return tree
