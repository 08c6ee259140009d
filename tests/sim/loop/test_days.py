"""Simulated days of a fleet that learns: figures, labels, refits and releases."""

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.verification import graph_decisions
from gatewise_sim.loop.days import _compute_device_bytes, simulate_loop
from gatewise_sim.loop.loop_rules import LoopRules
from tests.support.image_models import load_digit_images, pack_image_pair

pytest.importorskip("pyarrow")


def draw_rows(n_rows, seed, *, is_shifted=False):
    """Draw rows with classes that depend on two features; a shift inverts one and marks the third.

    The third feature is 0, and 3 after the shift, so that a refit can tell the shifted rows.
    """
    X = np.random.default_rng(seed).normal(size=(n_rows, 3)).astype(np.float32)
    y = np.where(X[:, 0] + 0.3 * X[:, 1] > 0.3, "yes", "no")
    X[:, 2] = 3.0 * is_shifted
    if is_shifted:
        X[:, 0] = -X[:, 0]
    return X, y


@pytest.fixture(scope="module")
def first_bundle(tmp_path_factory):
    """The bundle of the first day, beside the rows it was trained on."""
    from gatewise_training import StagedCascade

    path = tmp_path_factory.mktemp("loop")
    X, y = draw_rows(500, 0)
    np.savez(path / "train.npz", X=X, y=y)
    cascade = StagedCascade(
        n_stages=2, families=("linear",), effort="low", offload_rate=0.2, random_state=0
    ).fit(X, y)
    return pack(cascade, path / "bundle", sample=X[:32], name="turn", version="7")


def simulate_days(first_bundle, X, y, **rules):
    """Simulate the days that the rules ask for; return their report."""
    train_file = first_bundle.path.parent / "train.npz"
    return simulate_loop(first_bundle, X, y, train=train_file, rules=LoopRules(**rules))


def find_right_answers(bundle, X, y):
    """Find which rows the bundle answers with their class, by its models alone."""
    class_names = np.array(bundle.manifest.classes)
    return class_names[graph_decisions(bundle, X).labels] == y


@pytest.mark.slow
def test_figures_without_a_drift_equal_those_of_the_rows(first_bundle):
    X, y = draw_rows(900, 1)
    # without a mix, the days take the 900 rows in order
    report = simulate_days(first_bundle, X, y, days=3, instances=300, audit=0.2, labels=40)
    is_right = find_right_answers(first_bundle, X, y)
    is_offloaded = graph_decisions(first_bundle, X).exits == len(first_bundle.manifest.stages)
    for day_index, day in enumerate(report.days):
        day_rows = slice(300 * day_index, 300 * (day_index + 1))
        assert day.accuracy == np.mean(is_right[day_rows])
        assert day.offload_rate == np.mean(is_offloaded[day_rows])
        # A request and its response take more than 150 bytes each time.
        assert day.n_bytes > 150 * is_offloaded[day_rows].sum()
        # Labels are drawn by chance, 40 on average; 20 is three standard deviations, sqrt(40) each.
        assert 20 <= day.n_asked <= 60
        assert not day.verdict
    # labels arrive one day after their request
    assert [day.n_labels for day in report.days] == [
        0, report.days[0].n_asked, report.days[1].n_asked,
    ]  # fmt: skip
    # the interval, from the labels of two days, contains the accuracy on all rows
    last_day = report.days[-1]
    assert last_day.low < np.mean(is_right) < last_day.high
    assert report.n_releases == 0


@pytest.mark.slow
def test_a_day_without_a_message_requests_no_labels(first_bundle):
    X, y = draw_rows(100, 1)
    is_local = graph_decisions(first_bundle, X).exits < len(first_bundle.manifest.stages)
    # about one instance in a million is audited
    rules = {"days": 2, "instances": 5, "audit": 1e-6}
    report = simulate_days(first_bundle, X[is_local], y[is_local], **rules)
    assert [(day.n_bytes, day.n_asked, day.n_labels) for day in report.days] == [(0, 0, 0)] * 2


@pytest.mark.slow
def test_messages_have_the_values_of_a_device(tmp_path):
    image_bundle = pack_image_pair(tmp_path / "pair")
    images, y = load_digit_images()
    np.savez(tmp_path / "train.npz", X=images[:700], y=y[:700])
    rules = LoopRules(days=1, instances=100, audit=1.0)  # all instances are sent
    report = simulate_loop(
        image_bundle, images[700:], y[700:], train=tmp_path / "train.npz", rules=rules
    )
    # 64 bytes of uint8 pixels, and about 200 of the other fields of a request and its response;
    # pixels of float32 would have 256 bytes
    assert 200 < report.n_bytes / 100 < 300


@pytest.mark.slow
def test_a_download_has_all_files_except_the_high_cost_model(first_bundle):
    files = [file for file in first_bundle.path.iterdir() if file.name != "cloud.onnx"]
    assert _compute_device_bytes(first_bundle) == sum(file.stat().st_size for file in files)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_days(first_bundle):
    X, y = draw_rows(400, 1)
    rules = {"days": 2, "instances": 200, "labels": 30, "label_days": 0, "label_errors": 0.1}
    report = simulate_days(first_bundle, X, y, **rules)
    assert simulate_days(first_bundle, X, y, **rules) == report
    report_of_seed_1 = simulate_days(first_bundle, X, y, **rules, seed=1)
    # another seed chooses other audits, whose messages have bytes
    assert report_of_seed_1.days[0].n_bytes != report.days[0].n_bytes


@pytest.mark.slow
@pytest.mark.usefixtures("small_fits")
def test_a_drift_raises_the_alarm_and_leads_to_a_better_release(first_bundle):
    X_before, y_before = draw_rows(400, 1)
    X_after, y_after = draw_rows(1600, 2, is_shifted=True)
    X = np.concatenate([X_before, X_after])
    y = np.concatenate([y_before, y_after])
    report = simulate_days(
        first_bundle, X, y, days=10, instances=200, audit=0.3, labels=60, label_days=1,
        refit={"high_cost": "new", "offload_rate": 0.2, "kept_share": 0.9},
    )  # fmt: skip
    assert report.n_releases >= 1
    # The shift comes after 400 rows, which are two days; it makes most answers wrong, and the refit
    # regains nearly all of the accuracy.
    first_day, shifted_day, last_day = report.days[0], report.days[2], report.days[-1]
    assert shifted_day.accuracy < first_day.accuracy - 0.2
    assert last_day.accuracy > first_day.accuracy - 0.1
    release_index = [bool(day.released) for day in report.days].index(True)
    day_after_release = report.days[release_index + 1]
    assert day_after_release.version == report.days[release_index].released
    # each of ten devices downloads the release without the high-cost model; compression saves less
    # than half of it
    release_bytes = sum(
        file.size for name, file in first_bundle.manifest.files.items() if name != "cloud.onnx"
    )
    assert day_after_release.n_bytes > 5 * release_bytes
    assert report.n_asked == sum(day.n_asked for day in report.days)


@pytest.mark.slow
@pytest.mark.usefixtures("small_fits")
def test_rules_decide_whether_a_refit_of_unproven_gain_is_released(first_bundle):
    X, y = draw_rows(1200, 1)  # without a shift, so that a refit gains nothing
    rules = {
        "days": 3, "instances": 400, "audit": 0.3, "labels": 60, "label_days": 0,
        "refit_on": "labels", "refit_labels": 50,
    }  # fmt: skip
    report = simulate_days(first_bundle, X, y, **rules)
    assert "not shown" in {day.verdict for day in report.days}
    assert report.n_releases == 0
    assert simulate_days(first_bundle, X, y, **rules, release="always").n_releases > 0


def test_days_follow_the_mix_of_classes(first_bundle):
    X, y = draw_rows(500, 1)
    report = simulate_days(
        first_bundle, X, y, days=2, instances=300, labels=20, mix="steps,0s=1/0,24h=0/1"
    )
    is_right = find_right_answers(first_bundle, X, y)
    # the mix has only the first class, "no", in the first 24 hours, and only "yes" from then on
    for day, label in zip(report.days, ("no", "yes"), strict=True):
        # 300 draws of the rows of one class: four standard errors of a share near 0.9 are 0.07
        assert day.accuracy == pytest.approx(is_right[y == label].mean(), abs=0.1)


def test_wrong_settings_and_rows_are_refused(first_bundle):
    X, y = draw_rows(50, 1)
    with pytest.raises(InputError, match=r"refit\.seed: the simulation sets it"):
        LoopRules(refit={"seed": 1})
    with pytest.raises(InputError, match=r"refit\.hurry: gatewise refit has no such setting"):
        simulate_days(first_bundle, X, y, refit={"hurry": 1})
    with pytest.raises(InputError, match="a class of the bundle for every row"):
        simulate_days(first_bundle, X, np.where(y == "yes", "new", y))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"days": 0}, LoopRules)
    assert Bundle.open(first_bundle.path)  # a refusal leaves the first release as it was
