"""Filter that smooths the labels of successive windows."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from gatewise.errors import InputError


class MajorityFilter:
    """Filter that returns the most frequent label of the last windows.

    If several labels are equally frequent, the filter keeps its previous label if it is one of
    them, and otherwise returns the latest of them.

    Parameters
    ----------
    n_windows : int
        Number of windows, including the newest one. After a permanent change, the filter returns
        the new label ``n_windows // 2`` windows later.

    Examples
    --------
    >>> majority = MajorityFilter(3)
    >>> [majority.push(label) for label in "aabaabbb"]
    ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b']
    >>> majority.delay
    1
    """

    def __init__(self, n_windows: int) -> None:
        if (
            isinstance(n_windows, bool)
            or not isinstance(n_windows, int)
            or not 1 <= n_windows <= 10**6
        ):
            raise InputError(f"majority: {n_windows!r} windows; give a whole number, at least 1")
        self._labels: deque[Hashable] = deque(maxlen=n_windows)
        self._smoothed_label: Hashable = None

    @property
    def delay(self) -> int:
        """Number of windows after which the filter follows a permanent change."""
        return (self._labels.maxlen or 0) // 2

    def push(self, label: Hashable) -> Hashable:
        """Add the `label` of the next window and return the smoothed label."""
        self._labels.append(label)
        counts = Counter(self._labels)
        largest_count = max(counts.values())
        if counts[self._smoothed_label] < largest_count:
            self._smoothed_label = next(
                label for label in reversed(self._labels) if counts[label] == largest_count
            )
        return self._smoothed_label

    def reset(self) -> None:
        """Forget all windows, for example after a gap."""
        self._labels.clear()
        self._smoothed_label = None


def parse_filter(text: str) -> MajorityFilter:
    """Make the filter that ``majority:K`` describes; InputError for any other text."""
    kind, _, n_windows_text = text.partition(":")
    if kind != "majority" or not n_windows_text.isdecimal():
        raise InputError(f"{text}: give majority:K, where K is the number of windows")
    return MajorityFilter(int(n_windows_text))
