"""The answer to an instance, and the state on which a custom policy decides."""

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
    """State of a device and an instance after a stage has run.

    A custom policy is a function of this state. It returns ``stop`` to give the stage's answer,
    ``continue`` to run the next stage, or ``offload``. After the last stage ``continue`` offloads
    the instance as well.

    Attributes
    ----------
    stage : int
        Index of the stage that has run.
    is_last_stage : bool
        Whether it is the last stage on the device.
    score : float
        Stop score of the stage.
    threshold : float or None
        Smallest score at which the operating point stops here; None if it never stops.
    probabilities : ndarray of float64, shape (n_classes,)
        Class probabilities of the stage's answer; empty if the answers are values.
    cost : float
        Cost of the features acquired so far.
    time_left_ms : float
        Time until the answer is due, in milliseconds.
    is_connected : bool
        Whether the link can send, as far as the device knows.
    round_trip_ms : float
        Smoothed time from request to response in milliseconds; 0 before the first response.
    n_in_flight : int
        Number of the device's requests in flight.
    """

    stage: int
    is_last_stage: bool
    score: float
    threshold: float | None
    probabilities: NDArray[np.float64]
    cost: float
    time_left_ms: float
    is_connected: bool
    round_trip_ms: float
    n_in_flight: int

    @property
    def stops(self) -> bool:
        """Whether the operating point would stop here."""
        return self.threshold is not None and self.score >= self.threshold

    def decide(self, policy: CustomPolicy) -> Decision:
        """Call `policy` for its decision; after the last stage ``continue`` means ``offload``.

        Raises InputError if the policy returns anything but a decision.
        """
        decision = policy(self)
        if decision not in get_args(Decision):
            decision_names = ", ".join(map(repr, get_args(Decision)))
            raise InputError(
                f"the policy returned {decision!r}; it must return one of {decision_names}"
            )
        return "offload" if self.is_last_stage and decision == "continue" else decision


CustomPolicy: TypeAlias = Callable[[DecisionPoint], Decision]


class Answer(msgspec.Struct, eq=False):
    """The answer to an instance.

    Attributes
    ----------
    label : int, float, str or bool
        The class, as in the training data; or the value, a float, if the bundle's task is
        ``regress`` or ``rank``.
    class_index : int
        Index of the label among the bundle's classes; -1 for a value.
    probabilities : ndarray of float64, shape (n_classes,)
        Class probabilities; empty for a value.
    route : {"edge", "cloud", "fallback"}
        ``edge`` if a stage of the device stopped or the instance may not go to the cloud, ``cloud``
        if the cloud answered, and ``fallback`` if it should have answered but did not, so that the
        last finished stage answers.
    stage : int
        Index of the stage that gave the answer; the number of stages for the high-cost model.
    cost : float
        Cost of the acquired features, plus the price of a request if one was sent.
    feature_cost : float
        Cost of the acquired features only.
    latency_ms : float
        Time from the call to the answer, in milliseconds.
    reason : str
        Reason for the route. The reasons of each route are:

        - ``edge``: ``stopped``, ``last-stage`` or ``edge-only``;
        - ``cloud``: ``offloaded``, ``missing``, ``cloud-only``, or a failed sensor as below;
        - ``edge`` and ``cloud``: ``implausible:<name>`` with the name of the first column or
          channel that has a value far outside the training range;
        - ``fallback``: ``no-link``, ``link-down``, ``breaker-open``, ``offload-limit`` (the bound
          on the rate of offloads), ``full``, ``unsent``, ``too-large``, ``deadline``, ``timeout``,
          ``cloud:<error code>``, ``cloud:classes`` (an answer of other classes), or the failure of
          a column: ``missing:<name>``, ``infinite:<name>``, ``sensor:<name>`` or
          ``sensor-late:<name>``.
    acquired : tuple of int
        Indices of the acquired features.
    request : str
        For an answer by the cloud, the id of the request, followed by a hyphen and the row unless
        it is the first row. For a stored fallback, the id of its late request
        (:class:`.LateRequests`). Otherwise empty.
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


#: A function that is called with each answer or error.
Observer: TypeAlias = Callable[[Answer | Exception], None]
