"""Simulated days of a fleet that learns: figures, labels, refits and releases."""

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.verification import graph_outcome
from gatewise_sim.loop.days import simulate_loop
from gatewise_sim.loop.loop_rules import LoopRules

pytest.importorskip("pyarrow")


def make_rows(n, seed, *, shifted=False):
    """Rows whose class depends on two features; a shift inverts one and marks the third."""
    X = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    y = np.where(X[:, 0] + 0.3 * X[:, 1] > 0.3, "yes", "no")
    X[:, 2] = 3.0 * shifted
    if shifted:
        X[:, 0] = -X[:, 0]
    return X, y


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    from gatewise_training import StagedCascade

    path = tmp_path_factory.mktemp("loop")
    X, y = make_rows(500, 0)
    np.savez(path / "train.npz", X=X, y=y)
    system = StagedCascade(
        n_stages=2, families=("linear",), effort="low", offload_rate=0.2, random_state=0
    ).fit(X, y)
    return pack(system, path / "bundle", sample=X[:32], name="turn", version="7")


def run(deployed, X, y, **rules):
    train = deployed.path.parent / "train.npz"
    return simulate_loop(deployed, X, y, train=train, rules=LoopRules(**rules))


def test_figures_without_a_drift_equal_those_of_the_rows(deployed):
    X, y = make_rows(900, 1)
    report = run(deployed, X, y, days=3, instances=300, audit=0.2, labels=40)
    outcome = graph_outcome(deployed, X)
    names = np.array(deployed.manifest.classes)
    for day, figures in enumerate(report.days):
        part = slice(300 * day, 300 * (day + 1))
        assert figures.accuracy == np.mean(names[outcome.labels[part]] == y[part])
        is_offloaded = outcome.exits[part] == len(deployed.manifest.stages)
        assert figures.offload_rate == np.mean(is_offloaded)
        assert figures.n_bytes > 150 * is_offloaded.sum()
        assert 20 <= figures.n_asked <= 60
        assert not figures.verdict
    # labels arrive one day after their request
    assert [day.n_labels for day in report.days] == [
        0, report.days[0].n_asked, report.days[1].n_asked,
    ]  # fmt: skip
    last = report.days[-1]
    assert last.low < np.mean(names[outcome.labels] == y) < last.high
    assert report.n_releases == 0


def test_the_same_seed_gives_the_same_days(deployed):
    X, y = make_rows(400, 1)
    rules = {"days": 2, "instances": 200, "labels": 30, "label_days": 0, "label_errors": 0.1}
    assert run(deployed, X, y, **rules) == run(deployed, X, y, **rules)
    other = run(deployed, X, y, **rules, seed=1)
    assert other.days[0].n_bytes != run(deployed, X, y, **rules).days[0].n_bytes


@pytest.mark.slow
def test_a_drift_raises_the_alarm_and_leads_to_a_better_release(deployed):
    parts = make_rows(400, 1), make_rows(1600, 2, shifted=True)
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    report = run(
        deployed, X, y, days=10, instances=200, audit=0.3, labels=60, label_days=1,
        refit={"high_cost": "new", "offload_rate": 0.2, "kept_share": 0.9},
    )  # fmt: skip
    before, after = report.days[0], report.days[-1]
    assert report.n_releases >= 1
    shifted = report.days[2]
    assert shifted.accuracy < before.accuracy - 0.2
    assert after.accuracy > before.accuracy - 0.1
    (release_day, *_) = (day.day for day in report.days if day.released)
    day_after_release = report.days[release_day]
    assert day_after_release.version == report.days[release_day - 1].released
    # each of ten devices downloads the release
    download = sum(f.size for n, f in deployed.manifest.files.items() if n != "cloud.onnx")
    assert day_after_release.n_bytes > 5 * download
    assert report.n_asked == sum(day.n_asked for day in report.days)


@pytest.mark.slow
def test_rules_decide_whether_a_refit_of_unproven_gain_is_released(deployed):
    X, y = make_rows(1200, 1)
    rules = {
        "days": 3, "instances": 400, "audit": 0.3, "labels": 60, "label_days": 0,
        "refit_on": "labels", "refit_labels": 50,
    }  # fmt: skip
    released_if_better = run(deployed, X, y, **rules)
    assert "not shown" in {day.verdict for day in released_if_better.days}
    assert released_if_better.n_releases == 0
    assert run(deployed, X, y, **rules, release="always").n_releases > 0


def test_days_follow_the_mix_of_classes(deployed):
    X, y = make_rows(500, 1)
    report = run(deployed, X, y, days=2, instances=300, labels=20, mix="steps,0s=1/0,24h=0/1")
    outcome = graph_outcome(deployed, X)
    names = np.array(deployed.manifest.classes)
    is_right = names[outcome.labels] == y
    for figures, label in zip(report.days, ("no", "yes"), strict=True):
        assert figures.accuracy == pytest.approx(is_right[y == label].mean(), abs=0.1)


def test_wrong_settings_and_rows_are_refused(deployed):
    X, y = make_rows(50, 1)
    with pytest.raises(InputError, match=r"refit\.seed: the simulation sets it"):
        LoopRules(refit={"seed": 1})
    with pytest.raises(InputError, match=r"refit\.hurry: gatewise refit has no such setting"):
        run(deployed, X, y, refit={"hurry": 1})
    with pytest.raises(InputError, match="a class of the bundle for every row"):
        run(deployed, X, np.where(y == "yes", "new", y))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"days": 0}, LoopRules)
    assert Bundle.open(deployed.path)
