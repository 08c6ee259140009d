"""The answer to an instance, and the state that a custom policy decides by."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

Policy = Literal["system", "edge-only", "cloud-only"]
Route = Literal["edge", "cloud", "fallback"]
Decision = Literal["stop", "continue", "offload"]


@dataclass(frozen=True, slots=True, eq=False)
class DecisionPoint:
    """State of a device and an instance when one of its stages has answered.

    A custom policy is a function of it that returns ``stop`` (this stage's answer is given),
    ``continue`` (the next stage runs; from the last one the instance is offloaded) or ``offload``.

    Attributes
    ----------
    stage : int
        The stage that has answered.
    last : bool
        Whether it is the last one on the device.
    score : float
        Its stop score.
    threshold : float or None
        Score from which on the operating point stops here; None: never.
    probabilities : ndarray of float64, shape (n_classes,)
        Class probabilities of its answer; empty if the bundle answers with values.
    cost : float
        Price of the features acquired so far.
    left_ms : float
        Milliseconds until the answer is due.
    connected : bool
        Whether the link is up, as far as the device knows.
    round_trip_ms : float
        Usual time from request to response in ms; 0: not known yet.
    outstanding : int
        Requests of the device that are in flight.
    """

    stage: int
    last: bool
    score: float
    threshold: float | None
    probabilities: NDArray[np.float64]
    cost: float
    left_ms: float
    connected: bool
    round_trip_ms: float
    outstanding: int

    @property
    def stops(self) -> bool:
        """Whether the operating point would stop here."""
        return self.threshold is not None and self.score >= self.threshold

    def decide(self, policy: OwnPolicy) -> Decision:
        """Decision of `policy`; on the last stage to continue is to offload.

        Raises InputError if it returns no decision.
        """
        decision = policy(self)
        if decision not in get_args(Decision):
            names = ", ".join(map(repr, get_args(Decision)))
            raise InputError(f"the policy returned {decision!r}; it must return one of {names}")
        return "offload" if self.last and decision == "continue" else decision


OwnPolicy: TypeAlias = Callable[[DecisionPoint], Decision]


class Answer(msgspec.Struct, eq=False):
    """The one answer to an instance.

    Attributes
    ----------
    label : int, float, str or bool
        The class, as the user's data names it; of a bundle that answers with values (tasks
        ``regress`` and ``rank``) the value, a float.
    class_index : int
        Its index among the bundle's classes; -1 for a value.
    probabilities : ndarray of float64, shape (n_classes,)
        Empty for a value.
    route : {"edge", "cloud", "fallback"}
        A stage stopped here; the cloud answered; the cloud, or a sensor, was needed and failed,
        and the last finished stage answers instead.
    stage : int
        The stage that gave the answer; the number of stages for the high-cost model's.
    cost : float
        Features acquired, and the price of the offload if one was made.
    feature_cost : float
        Cost of the acquired features alone.
    latency_ms : float
        From the call to the answer, in milliseconds.
    reason : str
        Why this route. edge: ``stopped``, ``last-stage``, ``edge-only``. cloud: ``offloaded``,
        ``missing``, ``cloud-only``, or a failed sensor (below). Both: ``implausible:<name>``, of
        the first column or channel with a value far outside of those in training. fallback:
        ``no-link``, ``link-down``, ``breaker-open``, ``offload-limit`` (the bound on offloads over
        time), ``full``, ``unsent``, ``too-large``, ``deadline``, ``timeout``,
        ``cloud:<error code>``, or a column's failure as ``missing:<name>``, ``infinite:<name>``,
        ``sensor:<name>``, ``sensor-late:<name>``.
    acquired : tuple of int
        Features acquired, as indices.
    request : str
        Id of the request that the cloud answered, with a hyphen and the row if it is not the first
        of the request; of a fallback that is kept, its late request (:class:`.LateRequests`); else
        empty.
    """

    label: Hashable
    class_index: int
    probabilities: NDArray[np.float64]
    route: Route
    stage: int
    cost: float
    feature_cost: float
    latency_ms: float
    reason: str
    acquired: tuple[int, ...]
    request: str = ""
