"""Write the configuration of a router of language models from a log of graded answers.

    python router_config.py log.csv > router.json

The log has a row per question. Its column `win_rate` is the router's probability that the strong
model's answer is better. `weak_grade` and `strong_grade` are the grades of both answers, from 0 to
1, and `weak_cents` and `strong_cents` their costs. The strong model answers if the probability
reaches the threshold. The threshold guarantees, with confidence CONFIDENCE, that the mean grade is
at most MAX_LOSS below the strong model's. The printed `model` is RouteLLM's name of a router with
this threshold, rounded down.
"""

from __future__ import annotations

import json
import math
import sys

import pandas as pd

import gatewise as gw

#: Largest loss of the mean grade, compared with the strong model alone.
MAX_LOSS = 0.02
#: Confidence of the guarantee that the loss is not larger.
CONFIDENCE = 0.95
#: RouteLLM's name of its router by matrix factorisation, before the threshold.
ROUTER_PREFIX = "router-mf-"


def main(path: str) -> None:
    """Learn the threshold from the log, and print the configuration."""
    log = pd.read_csv(path)
    outcomes = gw.Outcomes(
        scores=-log["win_rate"],  # high if the weak model is good enough
        small_losses=1 - log["weak_grade"],
        big_losses=1 - log["strong_grade"],
        small_cost=log["weak_cents"],
        big_cost=log["strong_cents"],
        is_routed=True,  # only one of the two models answers
    )
    cascade = gw.OutcomeCascade(max_loss=MAX_LOSS, guarantee=CONFIDENCE, random_state=0).fit(
        outcomes
    )
    print(cascade.summary(), file=sys.stderr)
    (threshold,) = cascade.operating_point_.thresholds
    # The score is the negative win rate. Without a threshold the strong model always answers.
    # RouteLLM takes thresholds from 0 to 1. It is larger if the weak model may always answer.
    win_rate_threshold = 0.0 if threshold is None else min(max(-threshold, 0.0), 1.0)
    # rounded down, because the guarantee does not hold for a higher threshold
    named_threshold = math.floor(win_rate_threshold * 1e5) / 1e5
    configuration = {
        "model": f"{ROUTER_PREFIX}{named_threshold:.5f}",
        "threshold": win_rate_threshold,
        "expected_strong_share": round(cascade.operating_point_.offload_rate, 4),
        "expected_cents": round(cascade.operating_point_.cost, 4),
        "guarantee": cascade.to_dict()["guarantee"],
    }
    print(json.dumps(configuration, indent=2))


if __name__ == "__main__":
    main(sys.argv[1])
