"""Tests of the structure of the code: direction of imports, size of folders, plain words."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.processes import run_python

ROOT = Path(__file__).parents[1]
#: Each package may import itself and the packages before it.
PACKAGES = {
    "gatewise": ROOT / "gatewise",
    "gatewise_signals": ROOT / "signals/gatewise_signals",
    "gatewise_training": ROOT / "training/gatewise_training",
    "gatewise_export": ROOT / "export/gatewise_export",
    "gatewise_edge": ROOT / "edge/gatewise_edge",
    "gatewise_cloud": ROOT / "cloud/gatewise_cloud",
    "gatewise_sim": ROOT / "sim/gatewise_sim",
}
#: Libraries that take long to import or do not fit a device.
HEAVY_LIBRARIES = (
    "sklearn", "scipy", "lightgbm", "onnx", "skl2onnx", "matplotlib", "numba", "pandas", "joblib",
    "gatewise_training",
)  # fmt: skip
#: As many names as a reader can survey at once.
MAX_MODULES_PER_FOLDER = 15
#: Length of the longest chain today; a longer one would make modules harder to understand alone.
MAX_IMPORT_CHAIN = 11

#: Words that names of modules, classes, functions and parameters must not contain: metaphors, which
#: do not say what a thing is.
BANNED_IN_NAMES = {
    "alike", "beholder", "bought", "buy", "buying", "buys", "contest", "course", "dear", "hear",
    "heard", "honest", "judge", "judges", "judging", "ladder", "ledger", "leg", "legs", "masters",
    "purchase", "purchases", "rays", "room", "rooms", "said", "seam", "stranger", "strangers",
    "tally", "tell", "tells", "tether", "told", "unwound", "witness",
}  # fmt: skip
#: Names of functions that do not describe the result.
BANNED_FUNCTIONS = {"of", "look", "looks", "said", "tell", "say", "says"}
#: Words that first lines of docstrings must not contain, because they are figurative or colloquial.
BANNED_IN_FIRST_LINES = BANNED_IN_NAMES | {
    "bites", "door", "house", "hopeless", "riddle", "world", "nobody", "somebody", "whoever",
    "whatever", "whose", "asks", "ask", "speaks", "speak", "knows", "know", "wants", "want",
}  # fmt: skip


@cache
def find_modules() -> dict[str, Path]:
    """Find every module of the product by its dotted name."""
    path_of_module = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            name_parts = (package, *path.relative_to(folder).with_suffix("").parts)
            path_of_module[
                ".".join(name_part for name_part in name_parts if name_part != "__init__")
            ] = path
    return path_of_module


@cache
def parse_file(path: Path) -> ast.Module:
    """Parse a file once."""
    return ast.parse(path.read_text())


@cache
def list_imports(path: Path) -> tuple[str, ...]:
    """List the dotted names that a file imports anywhere, including those for type checking."""
    names: list[str] = []
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full_name = f"{node.module}.{alias.name}"
                names.append(full_name if full_name in find_modules() else node.module)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names += (
                argument.value for argument in node.args if isinstance(argument, ast.Constant)
            )
    return tuple(names)


def is_facade(name: str) -> bool:
    """Tell whether a module gives names of all packages, which it imports on demand."""
    return name.startswith("gatewise.facade")


def get_package(name: str) -> str:
    """Get the package of a dotted name."""
    return name.partition(".")[0]


@cache
def build_import_graph() -> dict[str, set[str]]:
    """Map each module to the product's modules that it imports."""
    return {
        name: {
            imported_name for imported_name in list_imports(path) if imported_name in find_modules()
        }
        - {name}
        for name, path in find_modules().items()
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package):
    package_order = list(PACKAGES)
    packages_above = set(package_order[package_order.index(package) + 1 :])
    for name, path in find_modules().items():
        if get_package(name) == package and not is_facade(name):
            forbidden_imports = {
                imported_name
                for imported_name in list_imports(path)
                if get_package(imported_name) in packages_above
            }
            assert not forbidden_imports, f"{name} imports {sorted(forbidden_imports)}"


@pytest.mark.parametrize("package", ["gatewise_edge", "gatewise_cloud"])
def test_edge_and_cloud_import_nothing_of_training(package):
    for name, path in find_modules().items():
        if get_package(name) == package:
            imported_packages = {get_package(imported) for imported in list_imports(path)}
            assert "gatewise_training" not in imported_packages, name


def test_imports_have_no_cycle():
    try:
        TopologicalSorter(build_import_graph()).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", PACKAGES)
def test_import_chains_within_a_package_are_short(package):
    imports_inside = {
        name: {
            imported for imported in build_import_graph()[name] if get_package(imported) == package
        }
        for name in build_import_graph()
        if get_package(name) == package
    }
    longest_chains: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(imports_inside).static_order():
        chains_below = [longest_chains[imported] for imported in imports_inside[name]]
        longest_below = max(chains_below, key=len, default=())
        longest_chains[name] = (name, *longest_below)
    longest_chain = max(longest_chains.values(), key=len)
    assert len(longest_chain) <= MAX_IMPORT_CHAIN, " -> ".join(longest_chain)


def test_folders_have_few_modules():
    modules_of_folder = defaultdict(list)
    for path in (*find_modules().values(), *ROOT.glob("benchmarks/**/*.py")):
        if path.name != "__init__.py" and not path.name.startswith("bench_"):  # commands
            modules_of_folder[path.parent].append(path.name)
    large_folders = {
        str(folder.relative_to(ROOT)): len(names)
        for folder, names in modules_of_folder.items()
        if len(names) > MAX_MODULES_PER_FOLDER
    }
    assert not large_folders


def test_class_names_are_unique():
    modules_of_class = defaultdict(list)
    for name, path in find_modules().items():
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.ClassDef):
                modules_of_class[node.name].append(name)
    assert not {
        name: module_names
        for name, module_names in modules_of_class.items()
        if len(module_names) > 1
    }


def test_no_module_defines_a_function_of_its_name():
    for name, path in find_modules().items():
        last_part = name.rpartition(".")[2]
        if path.name == "__init__.py":
            continue
        defined_functions = {
            node.name for node in parse_file(path).body if isinstance(node, ast.FunctionDef)
        }
        assert last_part not in defined_functions, f"{name} defines a function of its own name"


def split_name(identifier: str) -> set[str]:
    """Split a name into its words, in lower case."""
    spaced_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", identifier)
    return {word.lower() for word in spaced_name.split()}


def find_defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each class, function, parameter and field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


@pytest.mark.parametrize("package", PACKAGES)
def test_names_contain_no_banned_words(package):
    violations = []
    for name, path in find_modules().items():
        if get_package(name) != package:
            continue
        banned = split_name(name.replace(".", "_")) & BANNED_IN_NAMES
        violations += [f"{name}: module" for word in banned]
        for line, identifier in find_defined_names(parse_file(path)):
            if split_name(identifier) & BANNED_IN_NAMES:
                violations.append(f"{name}:{line}: {identifier}")
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.FunctionDef) and node.name in BANNED_FUNCTIONS:
                violations.append(f"{name}:{node.lineno}: {node.name}()")
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_first_lines_contain_no_banned_words(package):
    violations = []
    for name, path in find_modules().items():
        if get_package(name) != package:
            continue
        for node in ast.walk(parse_file(path)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            prose = re.sub(r"``.*?``|`.*?`|:\w+:`.*?`", "", first_line).lower()
            banned = set(re.findall(r"[a-z]+", prose)) & BANNED_IN_FIRST_LINES
            if banned:
                line = getattr(node, "lineno", 1)
                violations.append(f"{name}:{line}: {sorted(banned)}: {first_line}")
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("package", PACKAGES)
def test_constants_and_fields_are_documented_above(package):
    violations = []
    for name, path in find_modules().items():
        if get_package(name) != package:
            continue
        for node in ast.walk(parse_file(path)):
            body = getattr(node, "body", None)
            if not isinstance(body, list):  # a lambda's body is an expression
                continue
            for statement, following in itertools.pairwise(body):
                is_text = isinstance(following, ast.Expr) and isinstance(
                    following.value, ast.Constant
                )
                if is_text and isinstance(statement, ast.Assign | ast.AnnAssign):
                    violations.append(f"{name}:{following.lineno}: write it above, after '#:'")
    assert not violations, "\n".join(violations)


def test_package_folders_contain_only_the_package():
    for package, folder in PACKAGES.items():
        if package != "gatewise":
            entry_names = {path.name for path in folder.parent.iterdir()} - {"__pycache__"}
            assert entry_names == {package}


def test_a_device_loads_nothing_heavy():
    code = (
        "import gatewise as gw, gatewise_edge, sys\n"
        "gw.Device, gw.MqttLink, gw.Sensors, gw.FeatureCosts, gw.Bundle\n"
        "for name in gatewise_edge.__all__:\n    getattr(gatewise_edge, name)\n"
        "import gatewise_edge.sensors.table, gatewise_edge.link.wire\n"
        "from gatewise_export import Bundle\n"
        "from gatewise.cli import main\n"
        "assert not main(['edge', '--help']) and not main(['inspect', '--help'])\n"
        f"print('heavy:', *[name for name in {HEAVY_LIBRARIES!r} if name in sys.modules])"
    )
    assert run_python(code).splitlines()[-1] == "heavy:"


def test_error_of_a_facade_name_names_the_missing_extra():
    code = "import sys; sys.modules['onnx'] = None; import gatewise as gw; gw.pack"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (
        "this needs onnx, which is not installed: pip install 'gatewise[export]'" in process.stderr
    )


def test_all_names_of_the_facade_can_be_imported():
    import gatewise as gw

    for name in gw.__all__:
        assert getattr(gw, name) is not None
    assert {"StagedCascade", "FeatureCosts", "pack", "Device", "Worker", "simulate"} <= set(dir(gw))


def test_no_module_imports_pickle():
    for name, path in find_modules().items():
        assert not set(list_imports(path)) & {"pickle", "joblib.numpy_pickle"}, name


def test_no_simple_queue_is_read_with_a_timeout():
    """CPython's `SimpleQueue.get` blocks forever if its timeout ends between two attempts.

    The remaining time is then negative, which its lock treats as no timeout. A reader with timeouts
    of 60 us blocked within seconds. `Queue.get` does not have this fault.
    """
    for path in find_modules().values():
        code = path.read_text()
        assert "SimpleQueue()" not in code or ".get(timeout" not in code, path
