"""Smoothed labels beside the answers to windows that follow each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_signals.over_time.filters import parse_filter


class Smoothing:
    """The filter of ``--smooth``, written as `text`.

    `first` are the classes of the bundle that the device was set up with, `classes` gives those of
    the one that runs. An instance without an answer has no say. `delay`: in windows; `changed`:
    answers whose smoothed label is another. Raises InputError if it is no filter of such classes.
    """

    def __init__(
        self, text: str, first: Sequence[Any], classes: Callable[[], Sequence[Any]]
    ) -> None:
        if not first:
            raise InputError("--smooth is for bundles with classes; this one answers values")
        self._labels = parse_filter(text, tuple(first))
        self._classes = classes
        self.delay = self._labels.delay
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
