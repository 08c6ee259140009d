"""The majority filter, compared with counts of the labels at each window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_signals import MajorityFilter
from gatewise_signals.filters import parse_filter

LABEL_LISTS = st.lists(st.sampled_from("abc"), max_size=40)


@given(LABEL_LISTS, st.integers(1, 7))
def test_majority_filter_returns_the_most_frequent_of_the_last_labels(labels, n_windows):
    majority_filter = MajorityFilter(n_windows)
    expected_label = None
    for window_number, label in enumerate(labels):
        last_labels = labels[max(0, window_number - n_windows + 1) : window_number + 1]
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
def test_delay_is_the_number_of_windows_until_the_output_changes(n_windows, n_more):
    majority_filter = MajorityFilter(n_windows)
    # at least as many labels a as the filter remembers, and then enough labels b to change it
    n_labels_a = n_windows + n_more
    labels = "a" * n_labels_a + "b" * (n_windows + 1)
    smoothed_labels = [majority_filter.push(label) for label in labels]
    assert smoothed_labels.index("b") - n_labels_a == majority_filter.delay


def test_reset_forgets_all_labels():
    majority_filter = MajorityFilter(3)
    for label in (0, 0, 0):
        majority_filter.push(label)
    majority_filter.reset()
    # against three labels 0 a single 1 would lose
    assert majority_filter.push(1) == 1


@pytest.mark.parametrize("text", ["", "median:3", "majority:", "majority:0", "majority:2.5"])
def test_parse_filter_refuses_invalid_texts(text):
    with pytest.raises(InputError):
        parse_filter(text)


def test_parse_filter_makes_a_majority_filter():
    majority_filter = parse_filter("majority:5")
    assert isinstance(majority_filter, MajorityFilter)
    # three of five labels are a majority, so a change is visible two windows after its first one
    assert majority_filter.delay == 2
