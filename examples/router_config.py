"""Write the configuration of a router of language models from a log of graded answers.

    python router_config.py log.csv > router.json

The log has a row for each question: `win_rate`, the router's guess that the strong model's answer
would be better, the graders' marks of both answers from 0 to 1, and what each answer cost in cents.
The strong model answers if the guess reaches the threshold, so that the mean mark is at most 0.02
below the strong model's, with confidence 0.95. The printed name is that of a router with a
threshold in RouteLLM's server.
"""

from __future__ import annotations

import json
import sys

import pandas as pd

import gatewise as gw


def main(path: str) -> None:
    """Learn the threshold from the log, and print the configuration."""
    log = pd.read_csv(path)
    table = gw.Outcomes(
        scores=-log["win_rate"],  # a score is high where the small model will do
        small_losses=1 - log["weak_mark"],
        big_losses=1 - log["strong_mark"],
        small_cost=log["weak_cents"],
        big_cost=log["strong_cents"],
        is_routed=True,  # one of the two models is asked, not both
    )
    cascade = gw.OutcomeCascade(max_loss=0.02, guarantee=0.95, random_state=0).fit(table)
    print(cascade.summary(), file=sys.stderr)
    (threshold,) = cascade.operating_point_.thresholds
    # the score is the win rate with its sign changed; None: never ask the weak model
    win_rate = 0.0 if threshold is None else -threshold
    configuration = {
        "model": f"router-mf-{win_rate:.5f}",
        "threshold": win_rate,
        "expected_strong_share": round(cascade.operating_point_.offload_rate, 4),
        "expected_cents": round(cascade.operating_point_.cost, 4),
        "guarantee": cascade.to_dict()["guarantee"],
    }
    print(json.dumps(configuration, indent=2))


if __name__ == "__main__":
    main(sys.argv[1])
