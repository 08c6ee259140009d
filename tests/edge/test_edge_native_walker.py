"""The walker in C: the same bits, purchases and errors as in Python; safe where it is kept."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewise_edge.stages import native_walker
from gatewise_edge.stages.walker import Walker
from gatewise_export import native_library
from gatewise_export.bundle.flat_trees import FlatTrees, read_trees, write_trees
from gatewise_export.native_library import cache_folder, compiler, library

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler here")


@pytest.fixture(autouse=True)
def fresh(tmp_path_factory, monkeypatch):
    """A cache of the tests' own, and nothing remembered."""
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    library.cache_clear()
    yield
    library.cache_clear()


def flat(trees) -> FlatTrees:
    return read_trees(
        write_trees(trees), "trees", n_features=trees.n_features, n_outputs=trees.n_outputs
    )


def walked(walker, row):
    asked = []

    def ask(column):
        asked.append(column)
        return float(row[column])

    return walker.walk(ask), asked


@needs_compiler
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000), mixed=st.booleans())
def test_the_same_bits_and_purchases(random_trees, seed, mixed):
    trees, rows = random_trees(seed, mixed=mixed)
    read = flat(trees)
    python, native = Walker(read), native_walker.load(read)
    assert native is not None
    for row in rows:
        (slow, asked), (fast, asked_too) = walked(python, row), walked(native, row)
        assert fast.dtype == np.float32
        assert (fast.tobytes(), asked_too) == (slow.tobytes(), asked)
    for one, other in zip(native.run(rows), python.run(rows), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


@needs_compiler
def test_what_ask_raises_ends_the_walk(random_trees):
    trees, rows = random_trees(3)
    native = native_walker.load(flat(trees))
    before = walked(native, rows[0])
    assert len(before[1]) > 1
    calls = []

    def broken(column):
        calls.append(column)
        if len(calls) == 2:
            raise OSError("no such bus")
        return float(rows[0][column])

    with pytest.raises(OSError, match="no such bus"):
        native.walk(broken)
    assert calls == before[1][:2]
    with pytest.raises(TypeError):
        native.walk(lambda column: "7")
    again = walked(native, rows[0])  # nothing is left over
    assert (again[0].tobytes(), again[1]) == (before[0].tobytes(), before[1])


@needs_compiler
def test_a_walk_inside_a_walk_and_many_threads(random_trees):
    trees, rows = random_trees(5)
    native = native_walker.load(flat(trees))
    expected = [walked(native, row)[0].tobytes() for row in rows]

    def nested(column):
        assert walked(native, rows[1])[0].tobytes() == expected[1]
        return float(rows[0][column])

    assert native.walk(nested).tobytes() == expected[0]
    wrong = []

    def work():
        for _ in range(50):
            got = [walked(native, row)[0].tobytes() for row in rows]
            wrong.extend(i for i, g in enumerate(got) if g != expected[i])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_compiler
def test_rows_of_another_width(random_trees):
    trees, rows = random_trees(5)
    with pytest.raises(ValueError, match=f"rows of {trees.n_features} columns"):
        native_walker.load(flat(trees)).run(np.hstack([rows, rows]))


# -- where it is kept ----------------------------------------------------------------------


@needs_compiler
def test_it_is_compiled_once_into_a_folder_of_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library("walker", native_walker.SOURCE, native_walker.DECLARATIONS) is not None
    folder = tmp_path / "gatewise" / "native"
    (made,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    library.cache_clear()
    monkeypatch.setattr(native_library, "compiler", lambda: None)  # the second time it needs none
    assert library("walker", native_walker.SOURCE, native_walker.DECLARATIONS) is not None


@needs_compiler
def test_a_damaged_library_is_made_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = "int gw_seven(void); int gw_seven(void) { return 7; }\n"
    assert library("seven", code, "int gw_seven(void);")[1].gw_seven() == 7
    (made,) = (tmp_path / "gatewise" / "native").iterdir()
    # another process's, since this one has the file in use
    probe = (
        "import sys; from gatewise_export.native_library import library\n"
        "print(library('seven', sys.argv[1], 'int gw_seven(void);')[1].gw_seven())"
    )
    made.unlink()
    made.write_bytes(b"no library at all")
    made.chmod(0o700)
    done = subprocess.run([sys.executable, "-c", probe, code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


@needs_compiler
def test_a_folder_or_file_that_others_may_change_is_not_used(monkeypatch, tmp_path, random_trees):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trees = flat(random_trees(1)[0])
    assert native_walker.load(trees) is not None
    folder = tmp_path / "gatewise" / "native"
    (made,) = folder.iterdir()
    made.chmod(0o777)  # someone else may have written it: made anew
    library.cache_clear()
    assert native_walker.load(trees) is not None
    assert stat.S_IMODE(next(folder.iterdir()).stat().st_mode) == 0o700
    folder.chmod(0o777)
    library.cache_clear()
    assert native_walker.load(trees) is None
    folder.chmod(0o700)
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert cache_folder() is None


def test_no_compiler_no_walker(monkeypatch, tmp_path, random_trees):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    assert compiler() is None
    assert native_walker.load(flat(random_trees(1)[0])) is None


def test_a_compiler_that_fails_leaves_nothing(monkeypatch, tmp_path, random_trees):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    assert native_walker.load(flat(random_trees(1)[0])) is None
    assert list((tmp_path / "gatewise" / "native").iterdir()) == []


def test_no_cffi_no_walker(monkeypatch, random_trees):
    monkeypatch.setitem(sys.modules, "cffi", None)
    assert native_walker.load(flat(random_trees(1)[0])) is None


def test_no_folder_no_walker(monkeypatch, tmp_path, random_trees):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache_folder() is None
    assert native_walker.load(flat(random_trees(1)[0])) is None


def test_systemd_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CACHE_DIRECTORY", f"{tmp_path}/a:{tmp_path}/b")
    assert cache_folder() == Path(tmp_path, "a", "gatewise", "native")
    assert os.path.isdir(tmp_path / "a")


@needs_compiler
def test_fast_maths_is_refused(tmp_path):
    source = tmp_path / "walker.c"
    source.write_text(native_walker.SOURCE)
    command = [*compiler(), "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-c",
               "-o", str(tmp_path / "walker.o"), str(source)]  # fmt: skip
    assert subprocess.run(command).returncode == 0
    done = subprocess.run([*command, "-ffast-math"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "-ffast-math" in done.stderr
