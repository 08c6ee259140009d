"""The layout of a cascade in C: slots, types, threshold codes and sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import CALL_STACK_BYTES, PackedTrees, lay_out, pack_trees
from tests.support.c_cascades import make_step_cascade


def make_stump(feature: int, threshold: float, *, nan_left: bool = False, output: int = 0) -> Tree:
    """Make a tree with one inner node."""
    return Tree([feature, -1, -1], [threshold, 0, 0], [1, -1, -1], [2, -1, -1], nan_left, output)


@dataclass(frozen=True)
class Tree:
    """Nodes of one tree; inner nodes send NaN to the left if `nan_left`."""

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    nan_left: bool = False
    output: int = 0


def make_ensemble(*trees: Tree, n_features: int, n_outputs: int = 1) -> TreeEnsemble:
    """Join trees; the value of a node is its number."""
    sizes = [len(tree.feature) for tree in trees]
    roots = np.cumsum([0, *sizes[:-1]])

    def join_children(side: str) -> NDArray[np.int32]:
        """Join the children of all nodes, numbered over all trees; a leaf has -1."""
        joined_children = [
            np.where(np.array(getattr(tree, side)) < 0, -1, np.array(getattr(tree, side)) + root)
            for tree, root in zip(trees, roots, strict=True)
        ]
        return np.concatenate(joined_children).astype(np.int32)

    feature = np.concatenate([tree.feature for tree in trees]).astype(np.int32)
    nan_left = np.repeat([tree.nan_left for tree in trees], sizes) & (feature >= 0)
    return TreeEnsemble(
        feature=feature,
        threshold=np.concatenate([tree.threshold for tree in trees]).astype(np.float32),
        left=join_children("left"),
        right=join_children("right"),
        nan_left=nan_left,
        value=np.arange(sum(sizes), dtype=np.float32)[:, None],
        roots=roots.astype(np.int32),
        output=np.array([tree.output for tree in trees], np.int32),
        base=np.arange(n_outputs, dtype=np.float32),
        n_features=n_features,
    )


def make_cascade(*stages: Stage, **changes: Any) -> Cascade:
    return replace(
        make_step_cascade(1, takes_missing=False),
        stages=stages,
        **({"thresholds": (0.5,) * len(stages)} | changes),
    )


#: Tests feature 1, then on the left feature 0, then on its right feature 1 again.
DEEP_TREE = Tree(
    [1, 0, -1, 1, -1, -1, -1],
    [4.0, 2.0, 0, 1.0, 0, 0, 0],
    [1, 2, -1, 4, -1, -1, -1],
    [6, 3, -1, 5, -1, -1, -1],
    nan_left=True,
)


def test_packed_trees_count_the_inner_nodes_to_the_left():
    trees = make_ensemble(DEEP_TREE, make_stump(2, 7.0), n_features=3)
    packed = pack_trees(trees, np.array([5, 3, 4]), takes_missing=True)  # slots of the features
    assert packed.start.tolist() == [0, 3, 4]
    assert packed.slot.tolist() == [3, 5, 3, 4]
    assert packed.threshold.tolist() == [4.0, 2.0, 1.0, 7.0]
    assert packed.skip.tolist() == [2, 0, 0, 0]
    assert packed.nan_left.tolist() == [True, True, True, False]
    assert packed.leaves.small is not None
    assert (packed.leaves.small * packed.leaves.step).ravel().tolist() == [2, 4, 5, 6, 8, 9]
    assert packed.base.tolist() == [0]
    assert packed.code is None
    packed_without_missing = pack_trees(trees, np.array([5, 3, 4]), takes_missing=False)
    assert not packed_without_missing.nan_left.any()


def test_slots_are_the_features_of_all_stages_in_order():
    first_stage = Stage(
        make_ensemble(make_stump(0, 1.0), n_features=2), np.array([7, 2]), "sigmoid"
    )
    last_stage = Stage(make_ensemble(make_stump(1, 1.0), n_features=2), np.array([2, 4]), "sigmoid")
    layout = lay_out(make_cascade(first_stage, last_stage, thresholds=(0.5, None)), None)
    assert layout.columns.tolist() == [2, 4, 7]
    assert layout.n_slots == layout.n_values == 3
    assert [stage.slots.tolist() for stage in layout.stages] == [[2, 0], [0, 1]]
    assert [stage.score for stage in layout.stages] == ["margin", None]
    assert [stage.is_lazy for stage in layout.stages] == [False, False]
    assert [stage.n_margins for stage in layout.stages] == [1, 1]
    assert [forest.slot.tolist() for forest in layout.forests] == [[2], [1]]
    assert (layout.code_bits, layout.edges, layout.n_outputs) == (None, (), 1)


def test_a_stage_whose_model_is_left_out_still_acquires_its_features():
    stage = Stage(make_ensemble(make_stump(0, 1.0), n_features=1), np.array([3]), "sigmoid")
    cascade = make_cascade(stage, stage, thresholds=(None, 0.5), is_lean=True, offloads=True)
    stage_without_model, stage_with_model = lay_out(cascade, 8).stages
    assert (stage_without_model.model, stage_without_model.n_margins) == (None, 0)
    assert stage_without_model.score is None
    assert stage_without_model.slots.tolist() == stage_with_model.slots.tolist() == [0]
    assert isinstance(stage_with_model.model, PackedTrees)
    lazy_stage = Stage(stage.model, stage.features, "sigmoid", acquisition="node")
    assert lay_out(make_cascade(lazy_stage), None).stages[0].is_lazy


def test_codes_count_the_thresholds_below():
    # The first stage compares feature 0 with 2 and feature 1 with 4 and 1, the second one feature 1
    # with 3.
    first_stage = Stage(make_ensemble(DEEP_TREE, n_features=2), np.array([0, 1]), "sigmoid")
    last_stage = Stage(make_ensemble(make_stump(0, 3.0), n_features=1), np.array([1]), "sigmoid")
    cascade = make_cascade(first_stage, last_stage, takes_missing=True)
    layout = lay_out(cascade, 8)
    assert layout.code_bits == 8
    assert [edges.tolist() for edges in layout.edges] == [[2.0], [1.0, 3.0, 4.0]]
    assert [forest.code.tolist() for forest in layout.forests] == [[2, 0, 0], [1]]
    assert layout.nan_code == 255
    assert lay_out(make_cascade(first_stage, last_stage), 16).nan_code == 65535


def test_a_layout_without_thresholds_has_no_codes():
    linear_model = LinearModel(*np.ones((2, 3), "f4"), np.ones((3, 1), "f4"), np.ones(1, "f4"))
    layout = lay_out(make_cascade(Stage(linear_model, np.arange(3), "sigmoid")), 8)
    assert layout.code_bits is None
    assert layout.forests == ()
    assert layout.nan_flag == 0
    assert layout.nan_code == 0
    type_names = (
        "skip_type",
        "start_type",
        "row_type",
        "bound_type",
        "pick_type",
        "edge_start_type",
    )
    assert {layout.types[name] for name in type_names} == {"uint8_t"}


def test_the_error_for_too_many_thresholds_names_a_larger_form():
    cascade = make_step_cascade(65536, takes_missing=False)
    with pytest.raises(ConversionError, match=r"'x' has 65536 .* only 65535: use coded='float'"):
        lay_out(cascade, 16)


# A slot has one, two or four bytes, and NaN takes the highest bit.
@pytest.mark.parametrize(
    ("n_features", "flag"),
    [(1, 1 << 7), (128, 1 << 7), (129, 1 << 15), (32768, 1 << 15), (32769, 1 << 31)],
)
def test_the_flag_of_nan_is_the_bit_above_all_slots(n_features, flag):
    trees = make_ensemble(make_stump(n_features - 1, 0.5, nan_left=True), n_features=n_features)
    stage = Stage(trees, np.arange(n_features), "sigmoid")
    layout = lay_out(replace(make_cascade(stage), takes_missing=True), None)
    assert layout.nan_flag == flag
    assert layout.types["slot_type"] == f"uint{flag.bit_length()}_t"
    assert lay_out(make_cascade(stage), None).nan_flag == 0


@pytest.mark.parametrize(("n", "c_type"), [(256, "uint8_t"), (257, "uint16_t")])
def test_a_byte_numbers_256_slots_columns_and_outputs_and_counts_255_edges(n, c_type):
    trees = make_ensemble(make_stump(0, 1.0), n_features=n, n_outputs=n)
    types = lay_out(make_cascade(Stage(trees, np.arange(n), "softmax")), None).types
    type_names = ("column_type", "list_type", "slot_type", "output_type")
    assert {types[name] for name in type_names} == {c_type}
    layout = lay_out(make_step_cascade(n - 1, takes_missing=False), 16)
    assert layout.types["edge_start_type"] == c_type


def test_types_are_the_smallest_that_hold_all_numbers():
    n_stumps = 300
    stage = Stage(
        make_ensemble(*(make_stump(0, threshold) for threshold in range(n_stumps)), n_features=1),
        np.array([260]),
        "sigmoid",
    )
    types = lay_out(replace(make_cascade(stage)), 16).types
    assert types == {
        "column_type": "uint16_t",  # feature 260
        "list_type": "uint8_t",
        "slot_type": "uint8_t",
        "code_type": "uint16_t",
        "key_type": "uint16_t",
        "skip_type": "uint8_t",
        "start_type": "uint16_t",  # 300 inner nodes
        "row_type": "uint8_t",
        "bound_type": "uint8_t",
        "pick_type": "uint8_t",
        "output_type": "uint8_t",
        "edge_start_type": "uint16_t",
    }
    float_types = lay_out(replace(make_cascade(stage)), None).types
    assert (float_types["key_type"], float_types["code_type"]) == ("float", "uint8_t")
    assert float_types["edge_start_type"] == "uint8_t"


@pytest.mark.parametrize(
    ("n_features", "coded", "n_flags", "instance_bytes"),
    [
        (1, None, 4, 16),  # 4 (1 value + 1 output + 1), a flag and 3 of padding
        (4, None, 4, 28),
        (5, None, 8, 36),
        (3, 8, 5, 28),  # 3 codes and 5 flags
        (3, 16, 6, 32),  # 6 bytes of codes and 6 flags
        (4, 8, 4, 32),
        (7, 8, 9, 52),  # 7 codes, 7 flags and 2 of padding
    ],
)
def test_an_instance_ends_at_a_whole_word(n_features, coded, n_flags, instance_bytes):
    trees = make_ensemble(make_stump(0, 1.0), n_features=n_features)
    layout = lay_out(make_cascade(Stage(trees, np.arange(n_features), "sigmoid")), coded)
    assert layout.n_flags == n_flags
    assert layout.instance_bytes == instance_bytes
    assert instance_bytes % 4 == 0


def test_a_cascade_that_reads_nothing_has_one_value():
    layout = lay_out(make_cascade(Stage(make_constant_model(), np.arange(0), "sigmoid")), None)
    assert (layout.n_slots, layout.n_values) == (0, 1)
    assert layout.instance_bytes == 16


def make_constant_model() -> LinearModel:
    """Make a model without inputs; its only output is its bias."""
    return LinearModel(
        np.zeros(0, "f4"), np.zeros(0, "f4"), np.zeros((0, 1), "f4"), np.ones(1, "f4")
    )


def test_the_stack_holds_the_inputs_of_the_widest_kernel_machine():
    def make_kernel_stage(n_inputs: int) -> Stage:
        landmarks = np.ones((2, n_inputs), np.float32)
        model = KernelModel(
            mean=landmarks[0], scale=landmarks[0], landmarks=landmarks, rate=np.float32(1),
            weights=np.ones((2, 1), "f4"), bias=np.ones(1, "f4"),
        )  # fmt: skip
        return Stage(model, np.arange(n_inputs), "sigmoid")

    stages = [make_kernel_stage(n_inputs) for n_inputs in (2, 5, 3)]
    layout = lay_out(make_cascade(*stages), None)
    assert layout.widest_kernel == 5
    assert layout.stack_bytes == CALL_STACK_BYTES + 5 * 4  # five floats
    constant_stage = Stage(make_constant_model(), np.arange(0), "sigmoid")
    layout_without_kernels = lay_out(make_cascade(constant_stage), None)
    assert layout_without_kernels.widest_kernel == 0
    assert layout_without_kernels.stack_bytes == CALL_STACK_BYTES


@pytest.mark.parametrize(("takes_missing", "max_thresholds"), [(False, 255), (True, 254)])
def test_codes_of_a_byte_leave_one_for_nan(takes_missing, max_thresholds):
    """n thresholds have n + 1 codes; where NaN is a value, it has the last code for itself."""
    layout = lay_out(make_step_cascade(max_thresholds, takes_missing=takes_missing), 8)
    assert layout.forests[0].code.tolist() == list(range(max_thresholds))
    larger_cascade = make_step_cascade(max_thresholds + 1, takes_missing=takes_missing)
    with pytest.raises(
        ConversionError, match=f"8-bit codes distinguish only {max_thresholds}: use coded=16"
    ):
        lay_out(larger_cascade, 8)
    assert lay_out(larger_cascade, 16).code_bits == 16
