"""Tests of the structure of the code: direction of imports, size of folders, plain words."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.product_code import PACKAGES, ROOT, ProductModule, find_modules, get_package

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


MODULES = find_modules()


def list_allowed_packages(module: ProductModule) -> list[str]:
    """List the packages that a module may import."""
    packages = list(PACKAGES)
    allowed_packages = packages[: packages.index(module.package) + 1]
    if module.package in ("gatewise_edge", "gatewise_cloud"):
        allowed_packages.remove("gatewise_training")
    return allowed_packages


def test_imports_run_one_way():
    violations = []
    for module in MODULES.values():
        if module.name.startswith("gatewise.facade"):  # it imports names of all packages on demand
            continue
        forbidden_packages = PACKAGES.keys() - list_allowed_packages(module)
        violations += [
            f"{module.name} imports {imported_name}"
            for imported_name in module.imports
            if get_package(imported_name) in forbidden_packages
        ]
    assert not violations, "\n".join(violations)


def build_import_graph(package: str = "") -> dict[str, set[str]]:
    """Map each module to those that it imports, of a package or of the whole product."""
    names = {name for name, module in MODULES.items() if package in ("", module.package)}
    return {name: (MODULES[name].imports & names) - {name} for name in names}


def test_imports_have_no_cycle():
    try:
        TopologicalSorter(build_import_graph()).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", PACKAGES)
def test_import_chains_within_a_package_are_short(package):
    imports_inside = build_import_graph(package)
    longest_chains: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(imports_inside).static_order():
        chains_below = [longest_chains[imported] for imported in imports_inside[name]]
        longest_chains[name] = (name, *max(chains_below, key=len, default=()))
    longest_chain = max(longest_chains.values(), key=len)
    assert len(longest_chain) <= MAX_IMPORT_CHAIN, " -> ".join(longest_chain)


def test_folders_have_few_modules():
    modules_of_folder = defaultdict(list)
    product_paths = [module.path for module in MODULES.values()]
    for path in (*product_paths, *ROOT.glob("benchmarks/**/*.py")):
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
    for module in MODULES.values():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                modules_of_class[node.name].append(module.name)
    assert not {
        name: module_names
        for name, module_names in modules_of_class.items()
        if len(module_names) > 1
    }


def test_no_module_defines_a_function_of_its_name():
    for module in MODULES.values():
        last_part = module.name.rpartition(".")[2]
        if module.path.name != "__init__.py":
            top_level_functions = {
                node.name for node in module.nodes[0].body if isinstance(node, ast.FunctionDef)
            }
            assert last_part not in top_level_functions, module.name


def split_name(identifier: str) -> set[str]:
    """Split a name into its words, in lower case."""
    spaced_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", identifier)
    return {word.lower() for word in spaced_name.split()}


def find_defined_names(module: ProductModule) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each class, function, parameter and field."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


def test_names_contain_no_banned_words():
    violations = []
    for name, module in MODULES.items():
        if split_name(name.replace(".", "_")) & BANNED_IN_NAMES:
            violations.append(f"{name}: module")
        for line, identifier in find_defined_names(module):
            if split_name(identifier) & BANNED_IN_NAMES:
                violations.append(f"{name}:{line}: {identifier}")
        violations += [
            f"{name}:{node.lineno}: {node.name}()"
            for node in module.nodes
            if isinstance(node, ast.FunctionDef) and node.name in BANNED_FUNCTIONS
        ]
    assert not violations, "\n".join(violations)


def test_first_lines_contain_no_banned_words():
    violations = []
    for name, module in MODULES.items():
        for node in module.nodes:
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            prose = re.sub(r"``.*?``|`.*?`|:\w+:`.*?`", "", first_line).lower()
            banned = set(re.findall(r"[a-z]+", prose)) & BANNED_IN_FIRST_LINES
            if banned:
                line = getattr(node, "lineno", 1)
                violations.append(f"{name}:{line}: {sorted(banned)}: {first_line}")
    assert not violations, "\n".join(violations)


def test_constants_and_fields_are_documented_above():
    violations = []
    for name, module in MODULES.items():
        for node in module.nodes:
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
    for module in MODULES.values():
        assert not module.imports & {"pickle", "joblib.numpy_pickle"}, module.name


def test_no_simple_queue_is_read_with_a_timeout():
    """CPython's `SimpleQueue.get` blocks forever if its timeout ends between two attempts.

    The remaining time is then negative, which its lock treats as no timeout. A reader with timeouts
    of 60 us blocked within seconds. `Queue.get` does not have this fault.
    """
    for module in MODULES.values():
        code = module.source
        assert "SimpleQueue()" not in code or ".get(timeout" not in code, module.name
