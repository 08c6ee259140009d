"""The answer to an instance."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Policy = Literal["system", "edge-only", "cloud-only"]
Route = Literal["edge", "cloud", "fallback"]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
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
        A stage stopped here; the cloud, or a stage beyond the device, answered; the cloud, or a
        sensor, was needed and failed, and the last finished stage answers instead.
    stage : int
        The stage that gave the answer; the number of stages for the high-cost model's.
    cost : float
        Features acquired, and the price of the offload if one was made.
    feature_cost : float
        Features acquired alone.
    latency_ms : float
        From the call to the answer, in milliseconds.
    reason : str
        Why this route. edge: ``stopped``, ``last-stage``, ``edge-only``. cloud: ``offloaded``,
        ``gateway`` (a stage there answered), ``missing``, ``cloud-only``, ``audit`` (an audit
        found the stages wrong too often), or a failed sensor
        (below). fallback: ``no-link``, ``link-down``, ``breaker-open``, ``full``, ``unsent``,
        ``deadline``, ``timeout``, ``cloud:<error code>``, or a feature's failure as
        ``missing:<name>``, ``infinite:<name>``, ``sensor:<name>``, ``sensor-late:<name>``.
    acquired : tuple of int
        Features acquired, as indices.
    paced : bool
        Whether a pacer had moved the gate's threshold: then no guarantee of the operating point
        covers this answer.
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
    paced: bool = False
