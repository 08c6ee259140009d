"""Filters of the labels of windows that follow each other: a majority, or two states."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping

from gatewise.errors import InputError

NO_PROBABILITIES: Mapping[Hashable, float] = {}


class MajorityFilter:
    """The most frequent label of the last windows.

    Among labels that are as frequent, the smoothed label before stays; where it is not among them,
    it is the latest of them.

    Parameters
    ----------
    windows : int
        The last one among them. A change that lasts is seen ``windows // 2`` windows later.

    Examples
    --------
    >>> majority = MajorityFilter(3)
    >>> [majority.push(label) for label in "aabaabbb"]
    ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b']
    >>> majority.delay
    1
    """

    def __init__(self, windows: int) -> None:
        self._last: deque[Hashable] = deque(maxlen=_count("majority", windows))
        self._smoothed: Hashable = None

    @property
    def delay(self) -> int:
        """Windows by which a change that lasts is seen later."""
        return (self._last.maxlen or 0) // 2

    def push(
        self, label: Hashable, probabilities: Mapping[Hashable, float] = NO_PROBABILITIES
    ) -> Hashable:
        """Take the next window's `label` (no `probabilities` are read), get the smoothed one."""
        self._last.append(label)
        counts = Counter(self._last)
        most = max(counts.values())
        if counts[self._smoothed] < most:
            self._smoothed = next(c for c in reversed(self._last) if counts[c] == most)
        return self._smoothed

    def reset(self) -> None:
        """Forget the windows so far, as after a gap."""
        self._last.clear()
        self._smoothed = None


class TwoStateFilter:
    """A class that begins where it is likely for some windows, and ends where it is unlikely.

    While it is on, the smoothed label is that class; else it is the most likely other one.

    Parameters
    ----------
    positive : label
        The class.
    enter : float
        Begin once the class's probability was at least this for `windows` windows in a row.
    leave : float
        End once it is below this, at most `enter`.
    windows : int, default 1
        In a row, for `enter`.

    Examples
    --------
    >>> state = TwoStateFilter("fall", enter=0.8, leave=0.4, windows=2)
    >>> [state.push("", {"fall": p, "walk": 1 - p}) for p in (0.9, 0.1, 0.8, 0.9, 0.5, 0.3)]
    ['walk', 'walk', 'walk', 'fall', 'fall', 'walk']
    """

    def __init__(self, positive: Hashable, *, enter: float, leave: float, windows: int = 1) -> None:
        if not 0 <= leave <= enter <= 1:
            raise InputError(
                f"two-state: enter is {enter} and leave {leave}; give probabilities, leave at most "
                "enter"
            )
        self.positive, self.enter, self.leave = positive, enter, leave
        self.windows = _count("two-state", windows)
        self._on, self._likely = False, 0

    @property
    def delay(self) -> int:
        """Windows by which the beginning is seen later."""
        return self.windows - 1

    def push(
        self, label: Hashable, probabilities: Mapping[Hashable, float] = NO_PROBABILITIES
    ) -> Hashable:
        """Take the next window's `probabilities` by label, get the smoothed label.

        `label` is not read. InputError if the class has no probability, or there is no other.
        """
        if self.positive not in probabilities or len(probabilities) < 2:
            raise InputError(f"two-state: {self.positive!r} is none of {[*probabilities]}")
        likely = probabilities[self.positive]
        self._likely = self._likely + 1 if likely >= self.enter else 0
        self._on = likely >= self.leave if self._on else self._likely >= self.windows
        others = {c: p for c, p in probabilities.items() if c != self.positive}
        return self.positive if self._on else max(others, key=others.__getitem__)

    def reset(self) -> None:
        """Forget the windows so far, as after a gap."""
        self._on, self._likely = False, 0


def parse_filter(text: str, labels: tuple[Hashable, ...]) -> MajorityFilter | TwoStateFilter:
    """Make a filter of ``majority:K`` or ``two-state:LABEL,ENTER,LEAVE,WINDOWS``.

    Raises InputError if it is neither, or none of the labels is named so.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "majority":
            return MajorityFilter(int(rest))
        if kind == "two-state":
            name, enter, leave, windows = rest.rsplit(",", 3)
            found = [label for label in labels if str(label) == name]
            if not found:
                some = ", ".join(map(str, labels))
                raise InputError(f"{text}: there is no label {name!r}; the labels are {some}")
            return TwoStateFilter(
                found[0], enter=float(enter), leave=float(leave), windows=int(windows)
            )
    except InputError:
        raise
    except ValueError:
        pass
    raise InputError(f"{text}: give majority:K or two-state:LABEL,ENTER,LEAVE,WINDOWS")


def _count(what: str, windows: int) -> int:
    if isinstance(windows, bool) or not isinstance(windows, int) or not 1 <= windows <= 10**6:
        raise InputError(f"{what}: {windows!r} windows; give a whole number, at least 1")
    return windows
