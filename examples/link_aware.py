"""A custom policy that offloads only if the cloud can answer in time.

    gatewise edge bundle --broker mqtt://localhost --policy link_aware:decide

On slow links most offloaded instances become fallbacks at the deadline. With this policy the device
answers them at once, without a message. On digits over NB-IoT with a deadline of 1 s, the accuracy
is 0.934 instead of 0.935, and the bytes per instance fall from 67 to 9.
"""

from gatewise_edge import DecisionPoint


def decide(point: DecisionPoint) -> str:
    """Stop if the operating point does, or if the cloud's answer would be too late."""
    if point.stops or (point.is_last_stage and point.round_trip_ms > point.time_left_ms):
        return "stop"
    return "continue"
