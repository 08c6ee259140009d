"""Flat models round-trip bit for bit, and invalid files are refused with a one-line error."""

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
from tests.support.flat_models import draw_kernel_machine, draw_linear_model
from tests.support.trees import draw_trees

Arrays = dict[str, Any]


def list_bits(margins: Any) -> Any:
    """List the bits of float32 numbers as integers, so that NaN and -0 compare as well."""
    return np.ascontiguousarray(margins).view(np.uint32).tolist()


def write_trees(trees: TreeEnsemble) -> bytes:
    return write_model(trees.in_canonical_order())


def read_trees(content: bytes, file: str, *, n_features: int, n_outputs: int) -> TreeEnsemble:
    model = read_model(content, "lazy", file, n_inputs=n_features, n_outputs=n_outputs)
    assert isinstance(model, TreeEnsemble)
    return model


def read_same_shape(content: bytes, trees: TreeEnsemble) -> TreeEnsemble:
    return read_trees(content, "s.npz", n_features=trees.n_features, n_outputs=trees.n_outputs)


@settings(deadline=None)  # the first walk in training loads a compiled function
@given(seed=st.integers(0, 2**32), has_mixed_outputs=st.booleans())
def test_rows_get_the_margins_of_training(seed: int, has_mixed_outputs: bool) -> None:
    trees, rows = draw_trees(seed, has_mixed_outputs=has_mixed_outputs)
    content = write_trees(trees)
    assert write_trees(trees) == content
    margins, acquired = read_same_shape(content, trees).run_and_visit(rows)
    assert list_bits(margins) == list_bits(trees.margins(rows))
    assert acquired.tolist() == trees.visited_features(rows).tolist()
    assert read_same_shape(content, trees).run(rows[:0]).shape == (0, trees.n_outputs)


def test_values_that_trees_never_read_are_not_written() -> None:
    trees, rows = draw_trees(3)
    is_inner = trees.feature >= 0
    assert is_inner.any()
    noisy_trees = TreeEnsemble(**vars(trees) | {
        "value": np.where(is_inner[:, None], np.float32(9), trees.value),
        "threshold": np.where(is_inner, trees.threshold, np.float32(np.nan)),
        "nan_left": trees.nan_left | ~is_inner,
    })  # fmt: skip
    assert write_trees(noisy_trees) == write_trees(trees)
    assert list_bits(read_same_shape(write_trees(noisy_trees), trees).run(rows)) == list_bits(
        trees.margins(rows)
    )


def test_an_infinite_threshold_tests_whether_a_value_is_missing() -> None:
    X = np.float32([[1], [-2], [3], [np.nan]] * 20)
    y = [0, 0, 0, 1] * 20
    forest = RandomForestClassifier(3, random_state=0).fit(X, y)
    trees = TreeEnsemble.from_forest(forest)
    assert np.isinf(trees.threshold).any()
    largest_float = np.finfo(np.float32).max
    X = np.append(X, np.float32([[-largest_float], [largest_float]]), axis=0)
    margins, acquired = read_same_shape(write_trees(trees), trees).run_and_visit(X)
    assert list_bits(margins) == list_bits(trees.margins(X))
    assert acquired.tolist() == trees.visited_features(X).tolist()


def test_a_model_without_trees_answers_with_its_base() -> None:
    no_nodes = np.zeros(0, np.int32)
    trees = TreeEnsemble(
        feature=no_nodes, threshold=no_nodes.astype(np.float32),
        left=no_nodes, right=no_nodes,
        nan_left=no_nodes.astype(bool), value=np.zeros((0, 1), np.float32),
        roots=no_nodes, output=no_nodes,
        base=np.float32([1.5, -2]), n_features=0,
    )  # fmt: skip
    margins, acquired = read_same_shape(write_trees(trees), trees).run_and_visit(
        np.zeros((3, 0), np.float32)
    )
    assert margins.tolist() == [[1.5, -2.0]] * 3
    assert acquired.shape == (3, 0)


# -- invalid arrays ------------------------------------------------------------------------


def make_small_trees() -> Arrays:
    """Make two trees over three inputs: the first tests 2, then 0, and the second tests 1."""
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


def read_small_trees(arrays: Arrays, n_features: int = 3, n_outputs: int = 1) -> TreeEnsemble:
    content = write_arrays({name: array for name, array in arrays.items() if array is not None})
    return read_trees(content, "stage_1.npz", n_features=n_features, n_outputs=n_outputs)


def set_element(name: str, place: Any, value: Any) -> Callable[[Arrays], None]:
    def edit_arrays(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][place] = value

    return edit_arrays


def replace_array(name: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__setitem__(name, value)


def replace_left_by_spare(arrays: Arrays) -> None:
    """Keep the number of arrays, but not their names."""
    del arrays["left"]
    arrays["spare"] = np.zeros(1)


def remove_all_trees(arrays: Arrays) -> None:
    arrays.update(roots=arrays["roots"][:0], output=arrays["output"][:0])


INVALID_ARRAYS: list[tuple[Callable[[Arrays], None], str]] = [
    (replace_array("feature", None), "lacks the array 'feature'"),
    (replace_array("spare", np.zeros(1)), "more than 9 arrays"),
    (replace_left_by_spare, "lacks the array 'left'"),
    (replace_array("feature", np.array([2, 0, -1, -1, -1, 1, -1, -1])), "'feature' is int64"),
    (replace_array("left", np.array([1, 2, -1, -1, -1, 6, -1, -1], ">i4")), "'left' is >i4"),
    (replace_array("nan_left", np.zeros(8, np.uint8)), "'nan_left' is uint8"),
    (replace_array("value", np.zeros(8, np.float32)), "'value' is float32 with 1 dimensions"),
    (replace_array("roots", np.zeros((2, 1), np.int32)), "'roots' is int32 with 2 dimensions"),
    (replace_array("threshold", np.zeros(7, np.float32)), "'threshold' has 7 nodes, not 8"),
    (replace_array("left", np.zeros(9, np.int32)), "'left' has 9 nodes, not 8"),
    (replace_array("right", np.zeros(0, np.int32)), "'right' has 0 nodes, not 8"),
    (replace_array("nan_left", np.zeros(1, np.bool_)), "'nan_left' has 1 nodes, not 8"),
    (replace_array("value", np.zeros((5, 1), np.float32)), "'value' has 5 nodes, not 8"),
    (replace_array("value", np.zeros((8, 2), np.float32)), "'value' has 2 columns, not 1"),
    (replace_array("base", np.zeros(2, np.float32)), "'base' has 2 outputs, not 1"),
    (replace_array("output", np.zeros(3, np.int32)), "'output' has 3 trees, not 2"),
    (set_element("output", 0, 1), "'output' must be -1 to 0"),
    (set_element("output", 0, -2), "'output' must be -1 to 0"),
    (set_element("threshold", 0, np.nan), "'threshold' holds values that are not finite"),
    (set_element("value", 2, -np.inf), "'value' holds values that are not finite"),
    (set_element("base", 0, np.nan), "'base' holds values that are not finite"),
    (set_element("value", 2, 3e38), "'value' is so large"),
    (set_element("base", 0, -3e38), "'base' is so large"),
    (set_element("feature", 0, 3), "'feature' points outside the stage's 3 inputs"),
    (set_element("feature", 2, -2), "'feature' points outside"),
    (set_element("feature", 0, -1), "'left' gives a leaf a child"),
    (set_element("right", 2, 3), "'right' gives a leaf a child"),
    (set_element("left", 0, 0), "'left' must point to a later node"),  # a circle
    (set_element("right", 0, -1), "'right' must point to a later node"),
    (set_element("right", 0, 2**31 - 1), "'right' must point to a later node"),
    (set_element("right", 0, 6), "'right' must point to a later node of the same tree"),
    (set_element("right", 0, 3), "reach a node twice, or not at all"),
    (replace_array("roots", np.array([1, 5], np.int32)), "'roots' must ascend from 0"),
    (replace_array("roots", np.array([0, 0], np.int32)), "'roots' must ascend"),
    (
        replace_array("roots", np.array([0, 8], np.int32)),
        "'roots' must ascend from 0 and stay inside",
    ),
    (
        replace_array("roots", np.array([0, 4], np.int32)),
        "'right' must point to a later node of the same",
    ),
    (remove_all_trees, "'roots' must ascend"),
]


def test_the_unchanged_file_is_read() -> None:
    rows = np.float32([[0, 0, 0], [9, -2, 0.5], [0, 0, np.nan], [0, 0, 1]])
    margins, acquired = read_small_trees(make_small_trees()).run_and_visit(rows)
    # The base 0.25, a leaf of the first tree (1, 2, 1 or 3) and of the second (-0.5 or 0.5).
    assert margins[:, 0].tolist() == [0.75, 2.75, 0.75, 2.75]
    assert acquired[:3].all()
    assert acquired[3].tolist() == [False, True, True]  # a large feature 2 leads to a leaf


@pytest.mark.parametrize(
    ("edit", "message"), INVALID_ARRAYS, ids=[message for _, message in INVALID_ARRAYS]
)
def test_an_error_names_the_invalid_array(edit: Callable[[Arrays], None], message: str) -> None:
    arrays = make_small_trees()
    edit(arrays)
    with pytest.raises(BundleError) as error_info:
        read_small_trees(arrays)
    assert str(error_info.value).startswith("stage_1.npz")
    assert message in str(error_info.value)
    assert "\n" not in str(error_info.value)


def test_booleans_with_bytes_other_than_0_and_1_are_refused() -> None:
    content = write_arrays(make_small_trees())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["nan_left.npy"] = members["nan_left.npy"][:-1] + b"\x07"
    with pytest.raises(BundleError, match="'nan_left' holds bytes other than"):
        read_trees(zip_members(members), "s.npz", n_features=3, n_outputs=1)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("mean", 0, np.nan, "'mean' holds values that are not finite"),
        ("weights", (0, 0), np.inf, "'weights' holds values that are not finite"),
        ("bias", slice(1, None), None, "'bias' has 1 outputs, not 2"),
        ("scale", slice(1, None), None, "'scale' has 2 inputs, not 3"),
    ],
)
def test_invalid_linear_and_kernel_models_are_refused(
    name: str, place: Any, value: float | None, message: str
) -> None:
    rng = np.random.default_rng(0)
    for model in (draw_linear_model(rng, 3, 2), draw_kernel_machine(rng, 3, 4, 2)):
        arrays = {key: np.asarray(getattr(model, key)).copy() for key in model.ARRAYS}
        if value is None:
            arrays[name] = arrays[name][place]
        else:
            arrays[name][place] = value
        kind = "kernel" if "landmarks" in arrays else "linear"
        with pytest.raises(BundleError, match=message):
            read_model(write_arrays(arrays), kind, "s.npz", n_inputs=3, n_outputs=2)


# -- damaged files -------------------------------------------------------------------------


def zip_members(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_a_file_truncated_at_any_length_is_refused() -> None:
    content = write_arrays(make_small_trees())
    for length in range(len(content)):
        with pytest.raises(BundleError) as error_info:
            read_trees(content[:length], "s.npz", n_features=3, n_outputs=1)
        assert "\n" not in str(error_info.value)


def test_pickles_are_never_loaded(tmp_path: Any) -> None:
    class Trap:
        """An object with a pickle that creates a file when it is loaded."""

        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "sprung"), "w")

    stream = io.BytesIO()
    trap = np.array([Trap()] * 8, dtype=object)
    np.savez(stream, **make_small_trees() | {"feature": trap})  # type: ignore[arg-type]
    with pytest.raises(
        BundleError, match=r"stage_1\.npz cannot be read: an array has an unknown format"
    ):
        read_trees(stream.getvalue(), "stage_1.npz", n_features=3, n_outputs=1)
    assert not (tmp_path / "sprung").exists()


def test_an_array_that_inflates_beyond_the_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gatewise_export.bundle.flat_models.MAX_MODEL_BYTES", 1 << 12)
    large_arrays = make_small_trees() | {"feature": np.full(1 << 18, -1, np.int32)}
    content = write_arrays(large_arrays)
    assert len(content) < 1 << 14  # the compressed file is small
    with pytest.raises(BundleError, match="arrays larger than 4096 B"):
        read_trees(content, "s.npz", n_features=3, n_outputs=1)


def test_an_array_listed_twice_is_refused() -> None:
    with zipfile.ZipFile(io.BytesIO(write_arrays(make_small_trees()))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    del members["base.npy"]
    with pytest.raises(BundleError, match="'feature' is listed twice"):
        read_trees(
            zip_members(members | {"feature": members["feature.npy"]}),
            "s.npz",
            n_features=3,
            n_outputs=1,
        )


@given(data=st.data())
def test_walks_end_for_any_accepted_numbers(data: st.DataObject) -> None:
    """Trees with any integers are refused, or every walk ends at a leaf."""
    arrays = make_small_trees()
    for name in data.draw(st.lists(st.sampled_from(["feature", "left", "right", "roots", "output"]),
                                   min_size=1, max_size=4)):  # fmt: skip
        place = data.draw(st.integers(0, len(arrays[name]) - 1))
        arrays[name] = arrays[name].copy()
        arrays[name][place] = data.draw(st.integers(-2, 9))
    try:
        trees = read_small_trees(arrays)
    except BundleError:
        return
    margins = trees.run(np.float32([[0, 0, 0], [9, 9, 9], [np.nan, np.nan, np.nan]]))
    assert np.isfinite(margins).all()
