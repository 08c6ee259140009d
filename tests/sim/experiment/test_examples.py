"""Instances to look at: chosen from the routes, drawn where features are pixels."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from gatewise_sim.experiment.examples import choose_examples
from gatewise_sim.report.model import Report
from gatewise_sim.report.run_page import render
from tests.sim.report.reports import made_up

pytestmark = pytest.mark.slow  # a fitted system


@pytest.fixture(scope="module")
def chosen(small, routes):
    return routes, choose_examples(small.bundle.manifest, routes, small.rows)


def test_easy_ones_are_the_cheapest_and_hard_ones_the_least_sure(small, chosen):
    routes, examples = chosen
    easy, hard = examples[:3], examples[3:]
    own, sent = ~routes.offload, routes.offload
    assert [e.answered_by == "cloud" for e in examples] == [False] * 3 + [True] * 3
    assert easy[0].cost == routes.local_cost[own].min()
    assert routes.score[hard[0].row] == np.nanmin(routes.score[sent])
    for group in (easy, hard):
        assert len({e.label for e in group}) == 3
    for e in examples:
        assert e.values == tuple(small.rows[e.row].astype(float).tolist())
        assert e.truth == str(small.truth[e.row])
        assert e.cost == routes.cost[e.row]
    assert all(len(e.acquired) < 64 for e in easy)
    assert all(len(e.acquired) == 64 for e in hard)


def test_pixels_are_drawn_and_other_features_listed(chosen):
    examples, names = chosen[1], tuple(f"pixel_{k // 8}_{k % 8}" for k in range(64))
    report = replace(made_up(), examples=examples, features=names)
    assert Report.from_dict(json.loads(report.to_json())).examples == examples
    page = render(report)
    plot = re.search(r'<svg [^>]*aria-labelledby="examples-title.*?</svg>', page, re.DOTALL)
    assert sum(1 for _ in ET.fromstring(plot[0]).iter("path")) > 64
    others = tuple(f"sensor {k}" for k in range(len(names)))
    plain = render(replace(report, features=others))
    assert "examples-title" not in plain
    k = examples[0].acquired[0]
    assert f"sensor {k} {examples[0].values[k]:g}" in plain
