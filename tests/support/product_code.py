"""The modules of the product, which tests of its structure parse and walk once."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Folder of each package, which may import itself and the packages before it.
PACKAGES = {
    "gatewise": ROOT / "gatewise",
    "gatewise_signals": ROOT / "signals/gatewise_signals",
    "gatewise_training": ROOT / "training/gatewise_training",
    "gatewise_export": ROOT / "export/gatewise_export",
    "gatewise_edge": ROOT / "edge/gatewise_edge",
    "gatewise_cloud": ROOT / "cloud/gatewise_cloud",
    "gatewise_sim": ROOT / "sim/gatewise_sim",
}


@dataclass(frozen=True)
class ProductModule:
    """A module of the product, with its dotted name."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        """The package of the module."""
        return get_package(self.name)

    @cached_property
    def source(self) -> str:
        """The text of the module."""
        return self.path.read_text()

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The nodes of the module's tree, the root first."""
        return tuple(ast.walk(ast.parse(self.source)))

    @cached_property
    def imports(self) -> frozenset[str]:
        """Dotted names that the module imports anywhere, including those for type checking."""
        names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    full_name = f"{node.module}.{alias.name}"
                    names.add(full_name if full_name in find_modules() else node.module)
            elif isinstance(node, ast.Call) and _calls_import_module(node):
                names.update(
                    argument.value for argument in node.args if isinstance(argument, ast.Constant)
                )
        return frozenset(names)


def get_package(name: str) -> str:
    """Get the package of a dotted name."""
    return name.partition(".")[0]


def _calls_import_module(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


@cache
def find_modules() -> dict[str, ProductModule]:
    """Find every module of the product by its dotted name."""
    modules = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            name_parts = (package, *path.relative_to(folder).with_suffix("").parts)
            name = ".".join(name_part for name_part in name_parts if name_part != "__init__")
            modules[name] = ProductModule(name, path)
    return modules
