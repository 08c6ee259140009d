"""Offload only what can be answered in time: a custom policy.

    gatewise edge bundle --broker mqtt://localhost --policy link_aware:decide

On slow links most offloaded instances end as fallbacks after the whole deadline; this policy
answers them at once, without a message. On digits over NB-IoT with a second for each answer,
accuracy stays at 0.934 (0.935) and bytes fall from 67 to 9 per instance.
"""

from gatewise_edge import DecisionPoint


def decide(point: DecisionPoint) -> str:
    """Stop where the operating point does, or if the cloud's answer would be too late."""
    if point.stops or (point.last and point.round_trip_ms > point.left_ms):
        return "stop"
    return "continue"
