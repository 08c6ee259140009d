"""A custom policy that offloads at most a share of the instances.

    gw.Device(bundle, link=link, policy=OffloadShare(0.05))

Each instance adds `share` to the budget, up to `burst` offloads. The operating point still decides
which instances are hard.
"""

from gatewise_edge import DecisionPoint


class OffloadShare:
    """Token bucket of offloads that gains `share` per instance, up to `burst`."""

    def __init__(self, share: float, burst: float = 20.0) -> None:
        self.share = share
        self.burst = burst
        self.tokens = burst

    def __call__(self, point: DecisionPoint) -> str:
        """Stop if the operating point does, or if the budget is used up."""
        if point.stage == 0:
            self.tokens = min(self.tokens + self.share, self.burst)
        if point.stops:
            return "stop"
        if not point.is_last_stage:
            return "continue"
        if self.tokens < 1.0:
            return "stop"
        self.tokens -= 1.0
        return "continue"
