"""Bins of time, joined until each is wide enough to be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["joined"]

_COUNTS: Final = ("instances", "edge", "cloud", "fallback", "error")
_MEANS: Final = ("accuracy", "edge_accuracy")


def joined(
    bins: Sequence[Mapping[str, Any]], shortest: float, borders: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """Join neighbours until each begins at least `shortest` after the one before it.

    Parameters
    ----------
    bins : sequence of mapping
        As in a report's time line, sorted.
    shortest : float
        In seconds.
    borders : sequence of float
        Moments across which nothing is joined, as the begin of an outage.

    Returns
    -------
    list of dict
        With `stepped`, the seconds that were: counts are of these. Counts are sums, accuracies
        means by instance, ``p95_ms`` is the worst: that of all together cannot be known.
    """
    found: list[dict[str, Any]] = []
    for item in bins:
        one = dict(item) | {"stepped": item["end"] - item["begin"]}
        last = found[-1] if found else None
        if (
            last is not None
            and (one["begin"] - last["begin"] < shortest or one["stepped"] < 0.2 * shortest)
            and one["end"] - last["begin"] < 2 * shortest
            and not any(last["begin"] < b <= one["begin"] for b in borders)
        ):
            found[-1] = _both(last, one)
        else:
            found.append(one)
    return found


def _both(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(a) | {"begin": a["begin"], "end": b["end"], "stepped": a["stepped"] + b["stepped"]}
    for name in _COUNTS:
        both[name] = a[name] + b[name]
    for name in _MEANS:
        known = [(i[name], i["instances"]) for i in (a, b) if i[name] is not None]
        weight = sum(n for _, n in known)
        both[name] = sum(v * n for v, n in known) / weight if weight else None
    worst = [i["p95_ms"] for i in (a, b) if i["p95_ms"] is not None]
    both["p95_ms"] = max(worst, default=None)
    return both
