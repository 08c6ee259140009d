"""Smoothed labels beside the answers to windows that follow each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_signals.over_time.filters import LabelFilter


class Smoothing:
    """A filter of a device's answers; `classes` gives those of the running bundle.

    An instance without an answer has no say. `delay`: in windows; `changed`: answers whose smoothed
    label is another.
    """

    def __init__(self, labels: LabelFilter, classes: Callable[[], Sequence[Any]]) -> None:
        self._labels = labels
        self._classes = classes
        self.delay = labels.delay
        self.changed = 0

    def restart(self) -> None:
        """Forget the answers so far: the next instance does not follow them."""
        self._labels.reset()

    def add(self, answer: Answer) -> Any:
        """Take an answer, get the smoothed label; None where the class is no longer there."""
        with suppress(InputError):
            likely = dict(zip(self._classes(), answer.probabilities.tolist(), strict=False))
            label = self._labels.push(answer.label, likely)
            self.changed += label != answer.label
            return label
        return None
