"""What a fleet's messages cost its radios: of virtual time and of live runs alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.energy.meter import radio_joules
from gatewise_sim.fleet.energy.radio import Radio

__all__ = ["exchange_joules"]


def exchange_joules(
    answers: Answers, before: NDArray[np.float64], radio: Radio
) -> NDArray[np.float64]:
    """What each instance's messages cost its device's radio, in J, shape (n,).

    Parameters
    ----------
    answers : Answers
        At least all that were sent, in any order.
    before : ndarray of float64, shape (n,)
        Seconds from an instance's arrival until its request enters the link.
    radio : Radio
        That of every device. An exchange ends with its answer.
    """
    asked = np.flatnonzero(answers.payload_up > 0)
    begin = answers.time[asked] + before[asked]
    order = np.lexsort((begin, answers.device[asked]))
    asked, begin = asked[order], begin[order]
    end = np.maximum(begin, answers.time[asked] + answers.latency_ms[asked] / 1000.0)
    device, up, down = (
        getattr(answers, name)[asked].astype(np.int64) for name in ("device", "up", "down")
    )
    joules = np.zeros(len(answers))
    joules[asked] = radio_joules(radio, device, begin, end, up, down)[0]
    return joules
