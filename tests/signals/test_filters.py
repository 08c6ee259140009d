"""The majority filter, compared with counts of the labels at each window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_signals import MajorityFilter
from gatewise_signals.filters import parse_filter

LABELS = st.lists(st.sampled_from("abc"), max_size=40)


@given(LABELS, st.integers(1, 7))
def test_majority_filter_returns_the_most_frequent_of_the_last_labels(labels, n_windows):
    majority = MajorityFilter(n_windows)
    expected_label = None
    for i, label in enumerate(labels):
        window = labels[max(0, i - n_windows + 1) : i + 1]
        largest_count = max(map(window.count, window))
        most_frequent_labels = [
            candidate for candidate in window if window.count(candidate) == largest_count
        ]
        expected_label = (
            expected_label if expected_label in most_frequent_labels else most_frequent_labels[-1]
        )
        assert majority.push(label) == expected_label


@given(st.integers(1, 9), st.integers(0, 12))
def test_delay_is_the_number_of_windows_until_the_output_changes(n_windows, n_extra):
    majority = MajorityFilter(n_windows)
    n_first_label = n_windows + n_extra
    smoothed_labels = [
        majority.push(label) for label in "a" * n_first_label + "b" * (n_windows + 1)
    ]
    assert smoothed_labels.index("b") - n_first_label == majority.delay


def test_reset_forgets_all_labels():
    majority = MajorityFilter(3)
    for label in (0, 0, 0):
        majority.push(label)
    majority.reset()
    assert majority.push(1) == 1


@pytest.mark.parametrize("text", ["", "median:3", "majority:", "majority:0", "majority:2.5"])
def test_parse_filter_refuses_invalid_texts(text):
    with pytest.raises(InputError):
        parse_filter(text)


def test_parse_filter_makes_a_majority_filter():
    assert parse_filter("majority:5").delay == 2
