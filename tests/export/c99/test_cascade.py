"""The stages, models and features that C needs at an operating point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gatewise.decision import ALWAYS_STOP
from tests.support.c_cascades import make_step_cascade


def test_stages_after_one_that_always_stops_are_left_out():
    stage = make_step_cascade(3, takes_missing=False).stages[0]
    three_stages = replace(
        make_step_cascade(3, takes_missing=False), stages=(stage,) * 3, offloads=True
    )
    # The next larger threshold, with which a score of the lowest float32 does not stop.
    almost_always = float(np.nextafter(np.float32(ALWAYS_STOP), np.float32(0)))
    for thresholds, n_stages in (
        ((0.5, ALWAYS_STOP, None), 2),
        ((ALWAYS_STOP, 0.5, ALWAYS_STOP), 1),
        ((None, almost_always, None), 3),
        ((None, None, None), 3),
    ):
        cascade = replace(three_stages, thresholds=thresholds).without_unreachable_stages()
        assert (len(cascade.stages), len(cascade.thresholds)) == (n_stages, n_stages)
        assert cascade.never_offloads == (n_stages < 3)


def test_lean_keeps_only_models_of_stages_that_may_answer():
    stage = make_step_cascade(3, takes_missing=False).stages[0]
    lean_cascade = replace(
        make_step_cascade(3, takes_missing=False),
        stages=(stage,) * 3,
        thresholds=(None, 0.5, None),
        is_lean=True,
    )
    assert lean_cascade.stage_has_model == (False, True, True)  # the last stage answers the rest
    assert replace(lean_cascade, offloads=True).stage_has_model == (False, True, False)
    assert replace(lean_cascade, is_lean=False).stage_has_model == (True, True, True)
    assert replace(lean_cascade, thresholds=(None,) * 3).stage_n_outputs == (0, 0, 1)


def test_needed_features_include_those_of_a_possible_request():
    cascade = replace(
        make_step_cascade(3, takes_missing=False), feature_names=("x", "y", "z"),
        request_features=np.array([0, 2]), thresholds=(0.5,), offloads=True,
    )  # fmt: skip
    assert cascade.needed_features == {0, 2}
    assert replace(cascade, request_features=None).needed_features == {0, 1, 2}
    assert replace(cascade, is_lean=True).needed_features == {0}
    assert replace(cascade, offloads=False).needed_features == {0}
    assert replace(cascade, thresholds=(ALWAYS_STOP,)).needed_features == {0}
