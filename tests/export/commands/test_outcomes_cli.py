"""``gatewise outcomes`` chooses thresholds from a table of outcomes."""

from __future__ import annotations

import json

import numpy as np
import pytest

LOSSES = ("--score", "sure", "--small-loss", "small", "--big-loss", "big")
COSTS = ("--small-cost", "0.1", "--big-cost", "2")


@pytest.fixture
def log(tmp_path, monkeypatch):
    """CSV file in the current folder with outcomes of two systems and three small models."""
    rng = np.random.default_rng(0)
    sure = rng.uniform(size=2000)
    truth = rng.choice(["a", "b"], 2000)
    columns = {"sure": sure.round(4), "small": (rng.uniform(size=2000) > 0.6 + 0.4 * sure) * 1}
    columns |= {"big": (rng.uniform(size=2000) > 0.97) * 1, "price": rng.uniform(1, 3, 2000)}
    columns |= {"truth": truth, "big_answer": np.where(columns["big"], "c", truth)}
    for name in ("v1", "v2", "v3"):
        columns[name] = np.where(rng.uniform(size=2000) > 0.8, "c", truth)
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "log.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    monkeypatch.chdir(tmp_path)


def test_thresholds_keep_the_loss_bound_with_a_guarantee(log, run, tmp_path):
    code, out, err = run(
        "outcomes", "log.csv", *LOSSES, *COSTS, "--max-loss", "0.05", "--out", "thresholds.json"
    )
    assert code == 0, err
    assert "guaranteed with confidence 0.95" in out
    assert "less than the big system alone" in out
    document = json.loads((tmp_path / "thresholds.json").read_text())
    (threshold,) = document["thresholds"]
    assert 0.2 < threshold < 0.95
    assert document["lost"] <= 0.05
    assert document["guarantee"]["bound"] == 0.05


def test_a_cost_can_be_a_column(log, run):
    costs = ("--small-cost", "0.1", "--big-cost", "price")
    code, out, err = run("outcomes", "log.csv", *LOSSES, *costs, "--routed", "--json")
    assert code == 0, err
    assert 1.8 < json.loads(out)["big_cost"] < 2.2


def test_agreement_is_a_score(log, run):
    words = ("--agreement", "v1,v2,v3", "--truth", "truth", "--big-answer", "big_answer")
    code, out, err = run("outcomes", "log.csv", *words, *COSTS, "--max-loss", "0.05", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["thresholds"][0] == pytest.approx(0.8333, abs=1e-3)
    assert 0.3 < document["offload_rate"] < 0.7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--score", "sure", *COSTS), "give --score, --small-loss and --big-loss"),
        ((*LOSSES, *COSTS, "--group", "nothing"), "has no column 'nothing'"),
        (("--score", "truth", *LOSSES[2:], *COSTS), "must hold numbers"),
        (("--agreement", "v1,v2", *COSTS), "needs --truth"),
        ((*LOSSES, *COSTS, "--budget", "1", "--max-loss", "0.1"), "give only one of"),
    ],
)
def test_errors_say_what_to_do(log, run, words, message):
    code, _, err = run("outcomes", "log.csv", *words)
    assert code == 2
    assert message in err
