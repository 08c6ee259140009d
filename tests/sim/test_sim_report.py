import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_sim.live.outcome import publish_bytes
from gatewise_sim.report.legs import Leg, compare, measure, to_json

KEYS = {
    "accuracy": {"system", "edge_only", "cloud_only"},
    "feature_cost": {"system", "edge_only", "cloud_only"},
    "bytes": {"system", "cloud_only"},
    "latency_ms": {"system", "edge_only", "cloud_only"},
    "answers": {"edge", "cloud", "fallback", "late", "lost"},
}


def test_the_measures_of_a_made_up_run(legs, truth, manifest):
    got = measure(legs, truth, manifest)
    for key, parts in KEYS.items():
        assert set(got[key]) == parts
    assert got["instances"] == 200
    assert got["offload_rate"] == 0.2
    assert got["accuracy"] == {"system": 0.985, "edge_only": 0.915, "cloud_only": 0.99}
    # 120 rows at 6, 40 at 20 and 40 at 64, which is what every feature costs
    assert got["feature_cost"]["system"] == (120 * 6 + 40 * 20 + 40 * 64) / 200
    assert got["feature_cost"]["cloud_only"] == 62
    assert got["cost_reduction"] == 1 - got["feature_cost"]["system"] / 62
    # a request costs 2 more; the papers charge an offloaded row the cloud's 62 features
    assert got["cost"]["full"]["cloud_only"] == 64
    assert got["cost"]["paper"]["system"] == (120 * 6 + 40 * 20 + 40 * 62) / 200
    assert got["bytes"] == {"system": 40 * 550, "cloud_only": 200 * 550}
    assert got["answers"] == {"edge": 160, "cloud": 40, "fallback": 0, "late": 0, "lost": 0}
    stages = got["stages"]
    assert [(s["name"], s["answers"], s["price"]) for s in stages] == [
        ("stage 0", 120, 6.0),
        ("stage 1", 40, 14.0),
        ("cloud", 40, 44.0),
    ]
    assert sum(len(s["buys"]) for s in stages) == 64
    assert sum(got["latency_histogram"]["counts"]["system"]) == 200


def test_an_instance_without_an_answer_is_lost_and_wrong(legs, truth, manifest):
    fewer = replace(legs["system"], outcomes=legs["system"].outcomes[5:])
    got = measure({**legs, "system": fewer}, truth, manifest)
    assert got["answers"]["lost"] == 5
    assert got["accuracy"]["system"] == 0.985 - 4 / 200  # row 3 was wrong anyway


def test_one_row_answered_twice_does_not_hide_a_lost_one(legs):
    outcomes = list(legs["system"].outcomes)
    assert Leg([*outcomes[1:], outcomes[1]], len(outcomes)).lost == 1


def test_no_answers_at_all_still_make_a_report(legs, truth, manifest):
    silent = {key: replace(leg, outcomes=[]) for key, leg in legs.items()}
    got = measure(silent, truth, manifest)
    assert got["answers"]["lost"] == 200
    assert got["accuracy"]["system"] == 0
    assert got["feature_cost"]["system"] is None
    assert got["cost_reduction"] is None
    json.loads(to_json(got))


def test_fallbacks_count_as_offloaded(legs, truth, manifest):
    fallen = [
        o._replace(route="fallback", stage=1) if o.route == "cloud" else o
        for o in legs["system"].outcomes
    ]
    got = measure({**legs, "system": replace(legs["system"], outcomes=fallen)}, truth, manifest)
    assert got["offload_rate"] == 0.2
    assert got["answers"]["fallback"] == 40
    assert got["stages"][-1]["answers"] == 0


def test_the_comparison_counts_every_kind_of_difference(legs, expected):
    assert set(compare(legs, expected)["differing"].values()) == {0}
    outcomes = list(legs["system"].outcomes)
    outcomes[0] = outcomes[0]._replace(label=(outcomes[0].label + 1) % 10)
    outcomes[1] = outcomes[1]._replace(route="cloud")
    outcomes[2] = outcomes[2]._replace(cost=math.nextafter(outcomes[2].cost, 1e9))
    outcomes[199] = outcomes[199]._replace(route="fallback", label=-1, cost=-1.0)
    got = compare({**legs, "system": replace(legs["system"], outcomes=outcomes)}, expected)
    assert got["compared"] == 199
    assert got["differing"] == {"labels": 1, "routes": 1, "costs": 1, "cloud_labels": 0}


def test_the_order_of_the_answers_does_not_matter(legs, truth, manifest):
    rng = np.random.default_rng(0)

    def shuffled(leg):
        return replace(leg, outcomes=[leg.outcomes[i] for i in rng.permutation(leg.rows)])

    mixed = {key: shuffled(leg) for key, leg in legs.items()}
    assert measure(mixed, truth, manifest) == measure(legs, truth, manifest)


@given(st.integers(0, 40), st.integers(0, 200_000), st.sampled_from([0, 1]))
def test_publish_bytes_is_what_paho_would_write(topic, payload, qos):
    name = "t" * topic
    rest = 2 + len(name) + 2 * qos + payload
    length, value = 0, rest
    while True:  # the variable-length integer of MQTT 3.1.1, section 2.2.3
        length += 1
        value //= 128
        if not value:
            break
    assert publish_bytes(name, payload, qos=qos) == 1 + length + rest


def test_json_has_no_nan():
    with pytest.raises(ValueError, match="Expecting"):
        json.loads('{"a": nope}')
    assert json.loads(to_json({"a": float("nan"), "b": np.float32(0.5)})) == {"a": None, "b": 0.5}
