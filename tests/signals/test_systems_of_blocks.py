"""Cascades with blocks that are trained on windows, packed and run on a device."""

from __future__ import annotations

import json
import re
import subprocess

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw
import gatewise_signals as sig
from gatewise.errors import InputError
from gatewise_export import to_c
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.commands.bundle_tables import print_bundle
from gatewise_sim.experiment.rows import Rows
from tests.support.needs import needs_compiler

RATE_HZ = 100.0


def make_priced_blocks():
    channels = sig.Channels("acc", (0, 1), ("x", "y"), price=2.0)
    spectrum = sig.Spectrum(channels, RATE_HZ, price=20.0)
    return [
        sig.Mean(channels, price=1.0),
        sig.Statistics(channels, price=8.0),
        sig.BandPowers(spectrum, (0.0, 10.0, 25.0, 50.0), price=5.0),
        sig.Statistics(sig.Magnitude(channels, price=3.0), price=6.0),
    ]


def draw_windows(n, seed=0):
    """Draw vibrations of three classes: two differ in level, and the third in frequency."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    seconds = np.arange(64) / RATE_HZ
    frequencies_hz = np.where(y == 2, 30.0, 12.0)[:, None] + rng.normal(0, 2, (n, 1))
    waves = np.sin(2 * np.pi * (frequencies_hz * seconds + rng.random((n, 1))))
    levels = np.where(y == 0, 0.0, 0.6)[:, None]
    signals = np.stack([waves + levels, waves[:, ::-1]], axis=2) + rng.normal(0, 0.6, (n, 64, 2))
    return np.round(signals * 1000).astype(np.int16), y


@pytest.fixture(scope="module")
def system(make_once):
    def fit_system(_):
        x, y = draw_windows(600)
        settings = {"n_stages": 4, "effort": "low", "families": ("linear",), "random_state": 0}
        forest = ExtraTreesClassifier(30, random_state=0)
        return gw.StagedCascade(forest, blocks=make_priced_blocks(), **settings).fit(x, y)

    return make_once("system-of-blocks", fit_system)


@pytest.fixture(scope="module")
def bundle(system, tmp_path_factory):
    path = tmp_path_factory.mktemp("blocks") / "bundle"
    return gw.pack(system, path, sample=draw_windows(40, seed=5)[0])


def sum_block_prices(blocks):
    """Sum the prices of blocks and of the steps that they need, each counted once."""
    steps = set(blocks)
    while missing_steps := {input_step for step in steps for input_step in step.inputs} - steps:
        steps |= missing_steps
    return sum(step.price for step in steps)


@pytest.mark.slow
def test_each_window_pays_for_the_steps_that_its_stages_need(system):
    x, y = draw_windows(300, seed=1)
    graph = system.signal_input_.graph
    exits = system.exit_stage(x)
    assert (system.predict(x) == y).mean() > 0.8  # of three classes
    assert len(np.unique(exits)) > 1
    for stage in np.unique(exits):
        acquired_features = {
            feature
            for visited_stage in system.stages_[: stage + 1]
            for feature in visited_stage.features
        }
        if stage == len(system.stages_):
            acquired_features |= set(system.high_cost_model_.features)
        expected_price = sum_block_prices(
            {graph.blocks[number] for number in graph.block_of_feature[sorted(acquired_features)]}
        )
        assert system.cost(x)[exits == stage] == pytest.approx(expected_price)


@pytest.mark.slow
def test_a_device_computes_only_the_blocks_of_its_stages(system, bundle):
    x, _ = draw_windows(60, seed=2)
    with gw.Device(bundle) as device:
        answers = [device.answer(window) for window in x]
    exits, costs = system.exit_stage(x), system.cost(x)
    for answer, stage, cost in zip(answers, exits, costs, strict=True):
        if stage < len(system.stages_):
            assert answer.stage == stage
            assert answer.cost == pytest.approx(cost)
        else:
            assert answer.reason == "no-link"


def test_a_bundle_stores_its_blocks_as_settings(system, bundle):
    signal = bundle.manifest.signal
    assert signal.graph.steps == system.signal_input_.graph.steps
    assert (signal.shape, signal.dtype) == ((64, 2), "int16")
    assert bundle.manifest.feature_costs() == system.feature_costs_
    x, _ = draw_windows(20, seed=3)
    np.testing.assert_array_equal(signal.features(x), system.signal_input_.features(x))
    report = gw.verify(system, bundle, x)
    assert report.agrees
    assert report.differing_costs == 0


@pytest.mark.parametrize(
    ("change_document", "message"),
    [
        (
            lambda document: document["signal"]["steps"][1].update(kind="exec"),
            "kind: must be .* not .exec.",
        ),
        (
            lambda document: document["signal"]["steps"][1].update(source=7),
            r"steps\[1\]: reads step 7, which is not before it",
        ),
        (lambda document: document["signal"]["steps"][0].update(scale=0.0), "scale is 0.0"),
        (
            lambda document: document["signal"]["steps"][0].update(path="/etc"),
            "has an unknown key 'path'",
        ),
        (lambda document: document["signal"]["blocks"].append(0), "step 0 is not a block"),
        (lambda document: document["signal"]["blocks"].pop(), "features differ from the features"),
        (
            lambda document: document["groups"][0].update(requires=["nothing"]),
            "'nothing' is required",
        ),
        (lambda document: document["signal"].update(shape=[]), "must have at least 1 entries"),
    ],
)
def test_blocks_of_a_bundle_are_read_strictly(bundle, change_document, message):
    document = json.loads((bundle.path / "manifest.json").read_text())
    change_document(document)
    with pytest.raises(ManifestError, match=message):
        read_manifest(json.dumps(document).encode())


def test_features_that_differ_from_the_packed_ones_fail_the_self_test(bundle, monkeypatch):
    original_values = sig.Statistics.values
    monkeypatch.setattr(
        sig.Statistics, "values", lambda self, x: original_values(self, x) * np.float32(1.01)
    )
    with pytest.raises(gw.GatewiseError, match="features in 40 of 40 rows"):
        gw.Device(Bundle.open(bundle.path))


def test_a_window_of_another_length_is_refused_and_nan_is_missing(bundle):
    x, _ = draw_windows(1, seed=4)
    with gw.Device(bundle) as device:
        with pytest.raises(InputError, match=r"shape \(63, 2\)"):
            device.answer(x[0, :63])
        window_with_nan = x[0].astype(np.float32)
        window_with_nan[3] = np.nan
        with pytest.raises(gw.SensorError, match="missing"):
            device.answer(window_with_nan)


def test_blocks_are_a_parameter_of_the_estimator(system):
    assert clone(system).blocks == make_priced_blocks()
    x, y = draw_windows(60)
    with pytest.raises(InputError, match="give feature_costs or blocks, not both"):
        gw.StagedCascade(blocks=make_priced_blocks(), feature_costs=[1.0]).fit(x, y)
    with pytest.raises(InputError, match="one length"):
        gw.StagedCascade(blocks=make_priced_blocks()).fit([[1, 2], [3]], y)
    first_step = system.explain(draw_windows(1, seed=6)[0][0]).steps[0]
    acquired_blocks = {
        block for block in make_priced_blocks() if block.names[0] in first_step.acquired
    }
    assert first_step.price == pytest.approx(sum_block_prices(acquired_blocks))


def test_blocks_without_a_price_are_measured():
    x, _ = draw_windows(30)
    blocks = [sig.Mean(sig.Channels()), sig.Statistics(sig.Channels())]
    signal = sig.SignalInput.from_windows(blocks, x)
    assert all(step.price > 0 for step in signal.graph.steps)


@pytest.mark.slow
@needs_compiler
def test_c_of_a_system_and_its_bundle_gives_their_features_and_decisions(system, bundle, tmp_path):
    source_of_bundle = to_c(bundle, tmp_path / "c", name="vibration")
    source_of_system = to_c(
        system, tmp_path / "again", name="vibration", sample=draw_windows(40, seed=5)[0]
    )
    assert source_of_system.signals == source_of_bundle.signals
    process = subprocess.run(
        ["make", "-s", "-C", source_of_bundle.folder, "test", "CFLAGS=-O0"],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert re.search(r"vibration: 0 of \d+ rows differ \(40 of the sample", process.stdout)
    assert "features of 0 of 40 windows differ" in process.stdout
    assert "0 more are decided differently" in process.stdout


def test_inspect_lists_blocks_and_the_cost_of_each_step(system, bundle, capsys):
    assert "mean(acc)" in system.summary()
    assert "mean(acc).x.mean" not in system.summary()
    explanation = system.explain(draw_windows(1, seed=6)[0][0])
    assert set(explanation.steps[0].blocks) <= {block.label for block in make_priced_blocks()}
    print_bundle(bundle.manifest)
    line_of_step = {
        line.split("  ")[0].strip(): line for line in capsys.readouterr().out.splitlines()
    }
    graph = bundle.manifest.signal.graph
    first_inputs = bundle.manifest.stages[0].inputs
    for step in graph.steps:
        printed_price, *printed_stages = line_of_step[step.label].removeprefix(step.label).split()
        assert float(printed_price) == next(
            fitted_step.price
            for fitted_step in system.signal_input_.graph.steps
            if fitted_step == step
        )
        if step.label in graph.with_inputs(graph.block_labels(first_inputs)):
            assert printed_stages == ["0"]


@pytest.mark.slow
def test_a_fleet_is_simulated_on_windows(system, bundle, tmp_path):
    x, y = draw_windows(200, seed=7)
    report = gw.simulate(bundle, x, y, time="60s", devices=2, workload="poisson:1/s").report
    assert report.answers.lost == 0
    assert any("compute features of a window" in note for note in report.notes)
    # about 120 windows are drawn
    assert report.feature_cost["system"] == pytest.approx(system.cost(x).mean(), rel=0.1)
    np.savez(tmp_path / "windows.npz", X=x, y=y)
    rows = Rows.load(str(tmp_path / "windows.npz"), bundle.manifest)
    np.testing.assert_array_equal(rows.X, system.signal_input_.features(x))
    np.save(tmp_path / "windows.npy", x)
    rows_without_labels = Rows.load(str(tmp_path / "windows.npy"), bundle.manifest)
    np.testing.assert_array_equal(rows_without_labels.X, rows.X)
    assert rows_without_labels.truth is None
    with pytest.raises(gw.InputError, match="windows of shape"):
        Rows.from_arrays("windows", x[:, 1:], y, bundle.manifest)
    with gw.Device(bundle) as device:  # a device accepts features in place of the window
        for window, row in zip(x[:20], rows.X[:20], strict=True):
            answer_to_window = device.answer(window)
            answer_to_features = device.answer(row)
            assert (answer_to_features.label, answer_to_features.stage) == (
                answer_to_window.label,
                answer_to_window.stage,
            )
            assert answer_to_features.cost == answer_to_window.cost
