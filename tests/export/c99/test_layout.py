"""The sizes and types of a cascade in C; test_source.py compares its answers with Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import CALL_STACK_BYTES, Layout, lay_out
from tests.support.c_cascades import make_step_cascade


def make_stump(
    feature: int, n_features: int, *, nan_left: bool = False, n_outputs: int = 1
) -> TreeEnsemble:
    """Make one tree of one inner node."""
    return TreeEnsemble(
        feature=np.int32([feature, -1, -1]),
        threshold=np.float32([1, 0, 0]),
        left=np.int32([1, -1, -1]),
        right=np.int32([2, -1, -1]),
        nan_left=np.array([nan_left, False, False]),
        value=np.float32([[0], [1], [2]]),
        roots=np.int32([0]),
        output=np.int32([0]),
        base=np.arange(n_outputs, dtype=np.float32),
        n_features=n_features,
    )


def make_cascade(*stages: Stage) -> Cascade:
    return replace(
        make_step_cascade(1, takes_missing=False), stages=stages, thresholds=(0.5,) * len(stages)
    )


def lay_out_stump(n_features: int, coded: int | None = None) -> Layout:
    stage = Stage(make_stump(0, n_features), np.arange(n_features), "sigmoid")
    return lay_out(make_cascade(stage), coded)


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
    trees = make_stump(n_features - 1, n_features, nan_left=True)
    stage = Stage(trees, np.arange(n_features), "sigmoid")
    layout = lay_out(replace(make_cascade(stage), takes_missing=True), None)
    assert layout.nan_flag == flag
    assert layout.types["slot_type"] == f"uint{flag.bit_length()}_t"
    assert lay_out(make_cascade(stage), None).nan_flag == 0


@pytest.mark.parametrize(("n", "c_type"), [(256, "uint8_t"), (257, "uint16_t")])
def test_a_byte_numbers_256_slots_columns_and_outputs_and_counts_255_edges(n, c_type):
    trees = make_stump(0, n, n_outputs=n)
    types = lay_out(make_cascade(Stage(trees, np.arange(n), "softmax")), None).types
    type_names = ("column_type", "list_type", "slot_type", "output_type")
    assert {types[name] for name in type_names} == {c_type}
    layout = lay_out(make_step_cascade(n - 1, takes_missing=False), 16)
    assert layout.types["edge_start_type"] == c_type


def test_types_are_the_smallest_that_hold_all_numbers():
    cascade = make_step_cascade(300, takes_missing=False)
    cascade = replace(cascade, stages=(replace(cascade.stages[0], features=np.array([260])),))
    two_byte_types = ("column_type", "code_type", "key_type", "start_type", "edge_start_type")
    types = lay_out(cascade, 16).types
    assert {name for name, c_type in types.items() if c_type == "uint16_t"} == {*two_byte_types}
    assert set(types.values()) == {"uint8_t", "uint16_t"}
    float_types = lay_out(cascade, None).types
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
    layout = lay_out_stump(n_features, coded)
    assert (layout.n_flags, layout.instance_bytes) == (n_flags, instance_bytes)
    assert instance_bytes % 4 == 0


def test_the_stack_holds_the_inputs_of_the_widest_kernel_machine():
    def make_kernel_stage(n_inputs: int) -> Stage:
        landmarks = np.ones((2, n_inputs), np.float32)
        model = KernelModel(
            mean=landmarks[0], scale=landmarks[0], landmarks=landmarks, rate=np.float32(1),
            weights=np.ones((2, 1), "f4"), bias=np.ones(1, "f4"),
        )  # fmt: skip
        return Stage(model, np.arange(n_inputs), "sigmoid")

    layout = lay_out(make_cascade(*map(make_kernel_stage, (2, 5, 3))), None)
    assert layout.widest_kernel == 5
    assert layout.stack_bytes == CALL_STACK_BYTES + 5 * 4  # five floats
    layout_without_kernels = lay_out_stump(1)
    assert layout_without_kernels.widest_kernel == 0
    assert layout_without_kernels.stack_bytes == CALL_STACK_BYTES


def test_a_layout_without_trees_has_no_codes_of_nan():
    linear_model = LinearModel(*np.ones((2, 3), "f4"), np.ones((3, 1), "f4"), np.ones(1, "f4"))
    layout = lay_out(make_cascade(Stage(linear_model, np.arange(3), "sigmoid")), 8)
    assert (layout.code_bits, layout.nan_flag, layout.nan_code) == (None, 0, 0)


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
