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
    majority_filter = MajorityFilter(n_windows)
    expected_label = None
    for number, label in enumerate(labels):
        last_labels = labels[max(0, number - n_windows + 1) : number + 1]
        largest_count = max(map(last_labels.count, last_labels))
        most_frequent_labels = [
            candidate for candidate in last_labels if last_labels.count(candidate) == largest_count
        ]
        # in a tie the label stays, or else the latest one wins
        expected_label = (
            expected_label if expected_label in most_frequent_labels else most_frequent_labels[-1]
        )
        assert majority_filter.push(label) == expected_label


@given(st.integers(1, 9), st.integers(0, 12))
def test_delay_is_the_number_of_windows_until_the_output_changes(n_windows, n_extra):
    majority_filter = MajorityFilter(n_windows)
    n_first_labels = n_windows + n_extra
    smoothed_labels = [
        majority_filter.push(label) for label in "a" * n_first_labels + "b" * (n_windows + 1)
    ]
    assert smoothed_labels.index("b") - n_first_labels == majority_filter.delay


def test_reset_forgets_all_labels():
    majority_filter = MajorityFilter(3)
    for label in (0, 0, 0):
        majority_filter.push(label)
    majority_filter.reset()
    assert majority_filter.push(1) == 1


@pytest.mark.parametrize("text", ["", "median:3", "majority:", "majority:0", "majority:2.5"])
def test_parse_filter_refuses_invalid_texts(text):
    with pytest.raises(InputError):
        parse_filter(text)


def test_parse_filter_makes_a_majority_filter():
    assert parse_filter("majority:5").delay == 2  # three of five labels are a majority
