"""Models come back out of their file to the last bit; a file that lies is refused in one line."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.arrays import write_arrays
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.flat_models import read_model, write_model
from tests.support.flat_models import random_kernel, random_linear
from tests.support.trees import random_trees

Arrays = dict[str, Any]


def bits(margins: Any) -> Any:
    return np.ascontiguousarray(margins).view(np.uint32).tolist()


def write_trees(trees: TreeEnsemble) -> bytes:
    return write_model(trees.canonical())


def read_trees(content: bytes, file: str, *, n_features: int, n_outputs: int) -> TreeEnsemble:
    read = read_model(content, "lazy", file, n_inputs=n_features, n_outputs=n_outputs)
    assert isinstance(read, TreeEnsemble)
    return read


def back(content: bytes, trees: TreeEnsemble) -> TreeEnsemble:
    return read_trees(content, "s.npz", n_features=trees.n_features, n_outputs=trees.n_outputs)


@settings(deadline=None)  # the first walk in training loads a compiled function
@given(seed=st.integers(0, 2**32), mixed=st.booleans())
def test_every_row_walks_as_in_training(seed: int, mixed: bool) -> None:
    trees, rows = random_trees(seed, mixed=mixed)
    content = write_trees(trees)
    assert write_trees(trees) == content
    margins, bought = back(content, trees).run_and_visit(rows)
    assert bits(margins) == bits(trees.margins(rows))
    assert bought.tolist() == trees.visited(rows).tolist()
    assert back(content, trees).run(rows[:0]).shape == (0, trees.n_outputs)


def test_values_that_no_walk_reads_are_not_written() -> None:
    trees, rows = random_trees(3)
    inner = trees.feature >= 0
    assert inner.any()
    noisy = TreeEnsemble(**vars(trees) | {
        "value": np.where(inner[:, None], np.float32(9), trees.value),
        "threshold": np.where(inner, trees.threshold, np.float32(np.nan)),
        "nan_left": trees.nan_left | ~inner,
    })  # fmt: skip
    assert write_trees(noisy) == write_trees(trees)
    assert bits(back(write_trees(noisy), trees).run(rows)) == bits(trees.margins(rows))


def test_an_infinite_threshold_tests_whether_a_value_is_missing() -> None:
    x, y = np.float32([[1], [-2], [3], [np.nan]] * 20), [0, 0, 0, 1] * 20
    forest = RandomForestClassifier(3, random_state=0).fit(x, y)
    trees = TreeEnsemble.from_forest(forest)
    assert np.isinf(trees.threshold).any()
    x = np.append(x, np.float32([[-3.4028235e38], [3.4028235e38]]), axis=0)
    margins, bought = back(write_trees(trees), trees).run_and_visit(x)
    assert bits(margins) == bits(trees.margins(x))
    assert bought.tolist() == trees.visited(x).tolist()


def test_a_model_without_trees_gives_the_base() -> None:
    none = np.zeros(0, np.int32)
    trees = TreeEnsemble(
        feature=none, threshold=none.astype(np.float32), left=none, right=none,
        nan_left=none.astype(bool), value=np.zeros((0, 1), np.float32), roots=none, output=none,
        base=np.float32([1.5, -2]), n_features=0,
    )  # fmt: skip
    margins, bought = back(write_trees(trees), trees).run_and_visit(np.zeros((3, 0), np.float32))
    assert margins.tolist() == [[1.5, -2.0]] * 3
    assert bought.shape == (3, 0)


# -- files that lie ------------------------------------------------------------------------


def small() -> Arrays:
    """Two trees over three inputs: the first asks for 2, then for 0; the second for 1."""
    return {
        "feature": np.array([2, 0, -1, -1, -1, 1, -1, -1], np.int32),
        "threshold": np.array([0.5, 1, 0, 0, 0, -1, 0, 0], np.float32),
        "left": np.array([1, 2, -1, -1, -1, 6, -1, -1], np.int32),
        "right": np.array([4, 3, -1, -1, -1, 7, -1, -1], np.int32),
        "nan_left": np.array([1, 0, 0, 0, 0, 1, 0, 0], np.bool_),
        "value": np.array([[0], [0], [1], [2], [3], [0], [0.5], [-0.5]], np.float32),
        "roots": np.array([0, 5], np.int32),
        "output": np.array([0, 0], np.int32),
        "base": np.array([0.25], np.float32),
    }


def read(arrays: Arrays, n_features: int = 3, n_outputs: int = 1) -> TreeEnsemble:
    content = write_arrays({k: v for k, v in arrays.items() if v is not None})
    return read_trees(content, "stage_1.npz", n_features=n_features, n_outputs=n_outputs)


def at(name: str, place: Any, value: Any) -> Callable[[Arrays], None]:
    def edit(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][place] = value

    return edit


def whole(name: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__setitem__(name, value)


WRONG: list[tuple[Callable[[Arrays], None], str]] = [
    (whole("feature", None), "lacks 'feature'"),
    (whole("spare", np.zeros(1)), "more than 9 arrays"),
    (lambda a: (a.pop("left"), a.update(spare=np.zeros(1)))[0], "lacks 'left'"),
    (whole("feature", np.array([2, 0, -1, -1, -1, 1, -1, -1])), "'feature' is int64"),
    (whole("left", np.array([1, 2, -1, -1, -1, 6, -1, -1], ">i4")), "'left' is >i4"),
    (whole("nan_left", np.zeros(8, np.uint8)), "'nan_left' is uint8"),
    (whole("value", np.zeros(8, np.float32)), "'value' is float32 of 1 dimensions"),
    (whole("roots", np.zeros((2, 1), np.int32)), "'roots' is int32 of 2 dimensions"),
    (whole("threshold", np.zeros(7, np.float32)), "'threshold' is of 7 nodes, not 8"),
    (whole("left", np.zeros(9, np.int32)), "'left' is of 9 nodes, not 8"),
    (whole("right", np.zeros(0, np.int32)), "'right' is of 0 nodes, not 8"),
    (whole("nan_left", np.zeros(1, np.bool_)), "'nan_left' is of 1 nodes, not 8"),
    (whole("value", np.zeros((5, 1), np.float32)), "'value' is of 5 nodes, not 8"),
    (whole("value", np.zeros((8, 2), np.float32)), "'value' has 2 columns, not 1"),
    (whole("base", np.zeros(2, np.float32)), "'base' is of 2 outputs, not 1"),
    (whole("output", np.zeros(3, np.int32)), "'output' is of 3 trees, not 2"),
    (at("output", 0, 1), "'output' must be -1 to 0"),
    (at("output", 0, -2), "'output' must be -1 to 0"),
    (at("threshold", 0, np.nan), "'threshold' is not finite"),
    (at("value", 2, -np.inf), "'value' is not finite"),
    (at("base", 0, np.nan), "'base' is not finite"),
    (at("value", 2, 3e38), "'value' is so large"),
    (at("base", 0, -3e38), "'value' is so large"),
    (at("feature", 0, 3), "'feature' points outside the stage's 3 inputs"),
    (at("feature", 2, -2), "'feature' points outside"),
    (at("feature", 0, -1), "'left' gives a leaf a child"),
    (at("right", 2, 3), "'right' gives a leaf a child"),
    (at("left", 0, 0), "'left' must point to a later node"),  # a circle
    (at("right", 0, -1), "'right' must point to a later node"),
    (at("right", 0, 2**31 - 1), "'right' must point to a later node"),
    (at("right", 0, 6), "'right' must point to a later node of the same tree"),
    (at("right", 0, 3), "reach a node twice, or not at all"),
    (whole("roots", np.array([1, 5], np.int32)), "'roots' must ascend from 0"),
    (whole("roots", np.array([0, 0], np.int32)), "'roots' must ascend"),
    (whole("roots", np.array([0, 8], np.int32)), "'roots' must ascend from 0, inside the array"),
    (whole("roots", np.array([0, 4], np.int32)), "'right' must point to a later node of the same"),
    (lambda a: a.update(roots=a["roots"][:0], output=a["output"][:0]), "'roots' must ascend"),
]


def test_the_unchanged_file_is_read() -> None:
    x = np.float32([[0, 0, 0], [9, -2, 0.5], [0, 0, np.nan]])
    margins, bought = read(small()).run_and_visit(x)
    assert margins[:, 0].tolist() == [0.75, 2.75, 0.75]
    assert bought.all()
    assert read(small()).run_and_visit(np.float32([[0, 0, 1]]))[1].tolist() == [[False, True, True]]


@pytest.mark.parametrize(("edit", "why"), WRONG, ids=[w for _, w in WRONG])
def test_an_error_names_the_wrong_part(edit: Callable[[Arrays], None], why: str) -> None:
    arrays = small()
    edit(arrays)
    with pytest.raises(BundleError) as caught:
        read(arrays)
    assert str(caught.value).startswith("stage_1.npz")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_other_than_0_and_1_are_refused_as_booleans() -> None:
    content = write_arrays(small())
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        members = {name: old.read(name) for name in old.namelist()}
    members["nan_left.npy"] = members["nan_left.npy"][:-1] + b"\x07"
    with pytest.raises(BundleError, match="'nan_left' holds other bytes"):
        read_trees(zipped(members), "s.npz", n_features=3, n_outputs=1)


@pytest.mark.parametrize(
    ("name", "place", "value", "why"),
    [
        ("mean", 0, np.nan, "'mean' is not finite"),
        ("weights", (0, 0), np.inf, "'weights' is not finite"),
        ("bias", slice(1, None), None, "'bias' is of 1 outputs, not 2"),
        ("scale", slice(1, None), None, "'scale' is of 2 inputs, not 3"),
    ],
)
def test_wrong_sums_in_a_zip_file_are_refused(
    name: str, place: Any, value: float | None, why: str
) -> None:
    rng = np.random.default_rng(0)
    for model in (random_linear(rng, 3, 2), random_kernel(rng, 3, 4, 2)):
        arrays = {key: np.asarray(getattr(model, key)).copy() for key in model.ARRAYS}
        if value is None:
            arrays[name] = arrays[name][place]
        else:
            arrays[name][place] = value
        kind = "kernel" if "landmarks" in arrays else "linear"
        with pytest.raises(BundleError, match=why):
            read_model(write_arrays(arrays), kind, "s.npz", n_inputs=3, n_outputs=2)


# -- files that are no files ---------------------------------------------------------------


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_a_truncated_file_at_every_length() -> None:
    content = write_arrays(small())
    for length in range(len(content)):
        with pytest.raises(BundleError) as caught:
            read_trees(content[:length], "s.npz", n_features=3, n_outputs=1)
        assert "\n" not in str(caught.value)


def test_pickles_are_never_loaded(tmp_path: Any) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "sprung"), "w")

    file = io.BytesIO()
    trap = np.array([Trap()] * 8, dtype=object)
    np.savez(file, **small() | {"feature": trap})  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=r"stage_1\.npz cannot be read: an array that is not"):
        read_trees(file.getvalue(), "stage_1.npz", n_features=3, n_outputs=1)
    assert not (tmp_path / "sprung").exists()


def test_an_array_that_inflates_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatewise_export.bundle.flat_models.MAX_BYTES", 1 << 12)
    bomb = small() | {"feature": np.full(1 << 18, -1, np.int32)}
    content = write_arrays(bomb)
    assert len(content) < 1 << 14
    with pytest.raises(BundleError, match="arrays larger than 4096 B"):
        read_trees(content, "s.npz", n_features=3, n_outputs=1)


def test_an_array_listed_twice_is_refused() -> None:
    arrays = {f"{name}.npy": b"" for name in TreeEnsemble.ARRAYS}
    with zipfile.ZipFile(io.BytesIO(write_arrays(small()))) as old:
        arrays = {name: old.read(name) for name in old.namelist()}
    del arrays["base.npy"]
    with pytest.raises(BundleError, match="'feature' is listed twice"):
        read_trees(
            zipped(arrays | {"feature": arrays["feature.npy"]}), "s.npz", n_features=3, n_outputs=1
        )


@given(data=st.data())
def test_arrays_with_changed_numbers_end_their_walks(data: st.DataObject) -> None:
    """Whatever integers stand there: trees that are taken can be walked to their leaves."""
    arrays = small()
    for name in data.draw(st.lists(st.sampled_from(["feature", "left", "right", "roots", "output"]),
                                   min_size=1, max_size=4)):  # fmt: skip
        place = data.draw(st.integers(0, len(arrays[name]) - 1))
        arrays[name] = arrays[name].copy()
        arrays[name][place] = data.draw(st.integers(-2, 9))
    try:
        trees = read(arrays)
    except BundleError:
        return
    margins = trees.run(np.float32([[0, 0, 0], [9, 9, 9], [np.nan, np.nan, np.nan]]))
    assert np.isfinite(margins).all()
