"""From archived instances to true figures, with the commands that a user runs."""

import json

import msgspec
import numpy as np
import pytest

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_export.archive.labels import read_label_csv
from gatewise_export.archive.true_figures import metrics_text, monitor
from tests.export.archive.archived_rows import FACTS, archived
from tests.export.archive.test_folder import NOW, folder

pytest.importorskip("pyarrow")


def truth_of(rows, seed=0):
    """Draw labels from the probabilities of the high-cost model, which is then calibrated."""
    draws = np.random.default_rng(seed).random(len(rows))
    return np.where(draws < rows.probabilities[:, 0], "a", "b")


@pytest.fixture
def labelled(tmp_path, capsys):
    """An archive of 2,000 instances, a choice of 150 instances, and their labels."""
    rows = archived(2000)
    path = tmp_path / "kept"
    folder(path).add(rows, msgspec.structs.replace(FACTS, accuracy=0.99), NOW)
    out = tmp_path / "to-label.csv"
    command = ["labels", "choose", str(path), "--n", "150", "--out", str(out), "--seed", "0"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] > 100
    truth = dict(zip(rows.ids, truth_of(rows), strict=True))
    lines = out.read_text().splitlines()
    named = [line.split(",", 2) for line in lines[1:]]
    out.write_text("\n".join([lines[0], *(f"{n},{truth[n]},{r}" for n, _, r in named)]))
    assert main(["labels", "add", str(path), str(out), "--by", "anna"]) == 0
    return path, rows, truth


def test_true_figures_lie_in_their_intervals(labelled):
    path, rows, truth = labelled
    report = monitor(path)
    y = np.array([0 if truth[name] == "a" else 1 for name in rows.ids])
    w = rows.weights
    expected = {
        ("deployed", None): np.average(rows.answers == y, weights=w),
        ("high-cost", None): np.average(rows.cloud_label == y, weights=w),
        ("deployed", "a"): np.average(rows.answers[y == 0] == 0, weights=w[y == 0]),
        ("high-cost", "b"): np.average(rows.cloud_label[y == 1] == 1, weights=w[y == 1]),
    }
    figures = {(f.system, f.of): f for f in report.figures}
    for key, value in expected.items():
        assert figures[key].low < value < figures[key].high, key
        low, high = figures[key].labels_alone
        assert figures[key].high - figures[key].low < 1.05 * (high - low)
    assert report.n_labels == report.n_chosen
    assert report.n_instances == pytest.approx(rows.weights.sum())


def test_monitor_exits_with_an_alarm_if_the_promise_is_broken(labelled, tmp_path, capsys):
    path, *_ = labelled
    file = tmp_path / "truth.prom"
    assert main(["monitor", str(path), "--metrics", str(file)]) == 1  # 0.99 was promised
    output = capsys.readouterr()
    assert main(["monitor", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["alarm"]
    assert document["figures"][0]["low"] < document["figures"][0]["value"]
    assert "accuracy" in output.out
    assert "right less often than its bundle promises" in output.err
    assert 'gatewise_true_accuracy{model="tiny",version="1",system="deployed"} 0.' in (
        file.read_text()
    )
    assert 'gatewise_true_accuracy_alarm{model="tiny",version="1"} 1' in file.read_text()


def test_estimates_without_labels_have_no_interval(tmp_path):
    folder(tmp_path).add(archived(50), FACTS, NOW)
    report = monitor(tmp_path)
    assert report.n_labels == 0
    assert report.figures[0].value is not None
    assert report.figures[0].low is None
    assert "gatewise_true_accuracy_low{" not in metrics_text(report)


def test_days_limits_the_report_to_the_last_days(tmp_path):
    rows = archived(50)
    rows.time[:30] -= 10 * 86_400
    folder(tmp_path).add(rows, FACTS, NOW)
    assert (monitor(tmp_path).n_rows, monitor(tmp_path, days=5).n_rows) == (50, 20)
    with pytest.raises(InputError, match="has versions 1, not 9"):
        monitor(tmp_path, version="9")


def test_an_existing_file_is_not_overwritten(labelled, tmp_path, capsys):
    path, *_ = labelled
    folder(path).add(archived(20, seed=5), FACTS, NOW + 5)
    assert main(["labels", "choose", str(path), "--out", str(tmp_path / "to-label.csv")]) == 2
    assert "exists" in capsys.readouterr().err
    assert read_label_csv((tmp_path / "to-label.csv").read_text())


def test_a_refused_choice_writes_no_file_and_uses_no_instance(tmp_path, capsys):
    path = tmp_path / "kept"
    folder(path).add(archived(50), FACTS, NOW)
    out = tmp_path / "to-label.csv"
    page = tmp_path / "label.html"
    page.write_text("another page")
    command = ["labels", "choose", str(path), "--n", "20", "--out", str(out)]
    assert main([*command, "--page", str(page)]) == 2
    assert f"{page} exists" in capsys.readouterr().err
    assert not out.exists()
    assert main(command) == 0
    assert read_label_csv(out.read_text()) is not None


def test_instances_that_no_choice_covers_do_not_enter_the_estimate(labelled, tmp_path):
    """Labels could not correct the high-cost model's answers to these instances."""
    path, *_ = labelled
    before = monitor(path)
    later = archived(500, seed=3)
    later.probabilities[:] = [0.001, 0.999]  # certain and wrong predictions
    later.cloud_label[:] = 1
    folder(path).add(later, FACTS, NOW + 5)
    after = monitor(path)
    assert after.figures == before.figures
    assert (after.n_rows, after.n_labels) == (before.n_rows, before.n_labels)
    out = tmp_path / "later.csv"
    choice = ["labels", "choose", str(path), "--n", "60", "--out", str(out), "--seed", "1"]
    assert main(choice) == 0
    lines = out.read_text().splitlines()
    out.write_text("\n".join([lines[0], *(line.replace(",,", ",a,", 1) for line in lines[1:])]))
    assert main(["labels", "add", str(path), str(out)]) == 0
    covered = monitor(path)
    assert covered.n_rows == before.n_rows + len(later)
    assert covered.figures[0].value < before.figures[0].value
