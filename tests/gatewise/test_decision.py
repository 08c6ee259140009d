"""Stop scores, thresholds, labels and probabilities of arrays and of single rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gatewise import decision

FLOATS = st.floats(-50, 50, width=32)
MARGINS = st.integers(1, 5).flatmap(lambda k: arrays(np.float32, (7, k), elements=FLOATS))


@given(MARGINS)
def test_score_grows_with_the_confidence_of_the_label(margins):
    link = "sigmoid" if margins.shape[1] == 1 else "softmax"
    probabilities = decision.probabilities(margins, link)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    scores = decision.stop_score(margins)
    assert (scores >= 0).all()
    is_clear = scores > 1e-3  # at smaller scores, rounding may decide between two classes
    np.testing.assert_array_equal(
        probabilities.argmax(axis=1)[is_clear], decision.labels(margins)[is_clear]
    )


def test_nan_margins_never_stop():
    margins = np.array([[0.0, np.nan, 1.0], [0.0, 3.0, 1.0]], np.float32)
    scores = decision.stop_score(margins)
    assert np.isnan(scores[0])
    assert decision.stop_mask(scores, decision.ALWAYS_STOP).tolist() == [False, True]
    assert decision.stop_mask(scores, None).tolist() == [False, False]


def test_a_value_has_no_probabilities():
    margins = np.array([[0.5], [-2.0]], np.float32)
    assert decision.answers(margins, "identity").tolist() == [0.5, -2.0]
    assert decision.answers(margins, "sigmoid").tolist() == [1, 0]
    assert decision.probabilities(margins, "identity").shape == (2, 0)


def test_column_score_is_the_last_output():
    outputs = np.array([[1.0, 2.0, -3.0]], np.float32)
    margins, scores = decision.split_outputs(outputs, "column")
    assert margins.tolist() == [[1.0, 2.0]]
    assert scores.tolist() == [-3.0]


@given(FLOATS, FLOATS)
def test_a_midpoint_threshold_lies_between_two_scores(score, other_score):
    low, high = np.float32(min(score, other_score)), np.float32(max(score, other_score))
    if low < high:
        threshold = np.float32(decision.midpoint_threshold(float(low), float(high)))
        assert low < threshold <= high


def test_the_first_stage_that_reaches_its_threshold_answers():
    scores = [np.array([0.1, 0.9, np.nan], np.float32), np.array([0.8, 0.0, 0.3], np.float32)]
    assert decision.exit_stages(scores, (0.5, 0.5)).tolist() == [1, 0, 2]  # 2 is an offload


@pytest.mark.parametrize("margin", [0.0, -0.0])
def test_a_binary_tie_is_class_zero(margin):
    assert decision.labels(np.array([[margin]], np.float32)).tolist() == [0]


ANY_FLOAT = st.floats(width=32)  # NaN, infinities, subnormals and zeros of both signs among them
ROW_MARGINS = st.integers(1, 6).flatmap(
    lambda k: arrays(np.float32, (1, k), elements=ANY_FLOAT | FLOATS)
)


@given(ROW_MARGINS, st.floats(width=32, allow_nan=False) | st.none())
def test_decisions_on_plain_floats_equal_decisions_on_arrays(margins, threshold):
    row = margins[0].tolist()
    with np.errstate(all="ignore"):
        scores = decision.stop_score(margins)
        np.testing.assert_array_equal(np.float32([decision.row_stop_score(row)]), scores)
        float32_threshold = decision.as_float32(threshold)
        must_stop = (
            float32_threshold is not None and decision.row_stop_score(row) >= float32_threshold
        )
        assert must_stop == decision.stop_mask(scores, threshold)[0]
        links = ("sigmoid", "identity") if len(row) == 1 else ("softmax", "identity")
        for link in links:
            np.testing.assert_equal(
                decision.row_answer(row, link), decision.answers(margins, link)[0].item()
            )
            expected_probabilities = decision.probabilities(margins, link)[0]
            np.testing.assert_equal(decision.row_probabilities(row, link), expected_probabilities)


@pytest.mark.parametrize("rule_name", decision.STOP_RULES)
@pytest.mark.parametrize("n_margins", [1, 3])
def test_a_stop_rule_scores_rows_and_tables_alike_and_names_its_c_function(rule_name, n_margins):
    rule = decision.STOP_RULES[rule_name]
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(50, n_margins + rule.n_score_outputs)).astype(np.float32)
    outputs[:3, 0] = (np.nan, np.inf, -0.0)
    scores = [rule.row_score(row) for row in outputs.tolist()]
    np.testing.assert_array_equal(np.float32(scores), rule.scores(outputs))
    margins = [list(rule.row_margins(row)) for row in outputs.tolist()]
    np.testing.assert_array_equal(np.float32(margins), rule.margins(outputs))
    assert f"static float {rule_name}_score(const float *output, uint32_t n_margins)" in rule.c_code
    assert rule.graph_nodes(n_margins)[1][-1].outputs == "score"


@given(
    arrays(
        np.float32, st.tuples(st.integers(1, 4), st.sampled_from([2, 3, 9, 60])), elements=FLOATS
    )
)
def test_a_score_is_the_gap_between_the_two_largest_margins(margins):
    second_largest, largest = np.sort(margins, axis=1)[:, -2:].T
    np.testing.assert_array_equal(decision.stop_score(margins), largest - second_largest)


def test_shares_of_two_classes_are_answered_by_number():
    shares = np.array([[0.2, 0.8], [0.6, 0.4]], np.float32)
    assert decision.answers(shares, "identity").tolist() == [1, 0]


def run_nodes(rule, outputs):
    """Compute the score of a rule's nodes, as ONNX defines the operators."""
    constants, nodes = rule.graph_nodes(outputs.shape[1] - rule.n_score_outputs)
    value_of_name = {"margins": outputs, **constants}
    for operator, inputs, output_names, attributes in nodes:
        operand, *further_operands = (value_of_name[input_name] for input_name in inputs.split())
        if operator == "Gather":
            value_of_name[output_names] = np.take(operand, further_operands[0], **attributes)
        elif operator == "TopK":
            n_largest = further_operands[0][0]
            assert n_largest <= operand.shape[1]  # onnxruntime refuses more than there are
            indices = np.argsort(-operand, kind="stable", **attributes)[:, :n_largest]
            largest_values = np.take_along_axis(operand, indices, **attributes)
            value_of_name |= zip(output_names.split(), (largest_values, indices), strict=True)
        else:
            value_of_name[output_names] = {"Abs": np.abs, "Sub": np.subtract}[operator](
                operand, *further_operands
            )
    return value_of_name["score"]


@pytest.mark.parametrize("rule_name", decision.STOP_RULES)
@pytest.mark.parametrize("n_margins", [1, 2, 5])
def test_the_nodes_of_a_stop_rule_give_its_scores(rule_name, n_margins):
    rule = decision.STOP_RULES[rule_name]
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(20, n_margins + rule.n_score_outputs)).astype(np.float32)
    np.testing.assert_array_equal(run_nodes(rule, outputs), rule.scores(outputs))


def test_sigmoid_and_softmax_have_their_known_values():
    binary_margins = np.array([[np.log(3.0)]], np.float32)
    # sigmoid(log 3) = 3 / (1 + 3)
    np.testing.assert_allclose(decision.probabilities(binary_margins, "sigmoid"), [[0.25, 0.75]])
    three_margins = np.log(np.array([[1.0, 2.0, 5.0]])).astype(np.float32)
    np.testing.assert_allclose(
        decision.probabilities(three_margins, "softmax"), [[0.125, 0.25, 0.625]]
    )
    label, shares = decision.STOP_RULES["margin"].row_outcome([0.0, 0.0], "softmax")
    assert (label, shares.tolist()) == (0, [0.5, 0.5])  # in a tie, the first class


def test_a_midpoint_threshold_is_the_middle_or_of_neighbours_the_upper_score():
    assert decision.midpoint_threshold(1.0, 2.0) == 1.5
    below = np.float32(1.0)
    above = np.nextafter(below, np.float32(2.0))
    assert decision.midpoint_threshold(float(below), float(above)) == float(above)


@pytest.mark.parametrize(
    ("thresholds", "exits"),
    [
        ([None, None], [2]),
        ([0.5, None], [0, 2]),
        ([decision.ALWAYS_STOP, 0.5], [0]),
        ([np.nextafter(np.float32(decision.ALWAYS_STOP), np.float32(0)), 0.5], [0, 1, 2]),
    ],
)
def test_exits_end_at_a_stage_that_always_stops(thresholds, exits):
    assert decision.reachable_exits(thresholds) == exits
    # no stage with a score that may be NaN always stops
    stages_with_threshold = [
        stage for stage, threshold in enumerate(thresholds) if threshold is not None
    ]
    expected_exits = [*stages_with_threshold, len(thresholds)]
    assert decision.reachable_exits(thresholds, lambda _: True) == expected_exits


def test_a_stage_with_a_score_that_may_be_nan_passes_rows_on():
    thresholds = [0.5, decision.ALWAYS_STOP, 0.5]
    assert decision.reachable_exits(thresholds, lambda stage: stage == 0) == [0, 1]
    assert decision.reachable_exits(thresholds, lambda stage: stage == 1) == [0, 1, 2, 3]


def test_a_score_equal_to_its_threshold_stops():
    scores = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(0))], np.float32)
    assert decision.stop_mask(scores, 0.5).tolist() == [True, False]


def test_class_positions_accept_classes_in_any_order():
    classes = np.array(["b", "c", "a"])
    assert decision.class_positions(classes, np.array(["a", "b", "c"])).tolist() == [2, 0, 1]
