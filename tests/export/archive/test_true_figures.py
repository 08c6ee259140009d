"""From archived instances to true figures, with the commands that a user runs."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_export.archive.choice import choose, write_choice
from gatewise_export.archive.folder import shards_in
from gatewise_export.archive.labels import add_labels
from gatewise_export.archive.true_figures import metrics_text, monitor
from tests.export.archive.archived_rows import FACTS, make_archived_rows
from tests.export.archive.test_folder import DAY_SECONDS, NOW, open_folder

pytest.importorskip("pyarrow")


def draw_labels(rows, seed=0):
    """Draw labels from the probabilities of the high-cost model, which is then calibrated."""
    draws = np.random.default_rng(seed).random(len(rows))
    return np.where(draws < rows.probabilities[:, 0], "a", "b")


@pytest.fixture
def labelled_archive(tmp_path, capsys):
    """The path of an archive with 150 labels, its 2,000 rows, and the truth by the id of a row."""
    rows = make_archived_rows(2000)
    path = tmp_path / "kept"
    open_folder(path).add(rows, msgspec.structs.replace(FACTS, accuracy=0.99), NOW)
    csv_file = tmp_path / "to-label.csv"
    command = ["labels", "choose", str(path), "--n", "150", "--out", str(csv_file), "--seed", "0"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] > 100
    truth = dict(zip(rows.ids, draw_labels(rows), strict=True))
    header, *lines = csv_file.read_text().splitlines()
    labelled_lines = []
    for line in lines:
        instance_id, _, other_cells = line.split(",", 2)
        labelled_lines.append(f"{instance_id},{truth[instance_id]},{other_cells}")
    csv_file.write_text("\n".join([header, *labelled_lines]))
    assert main(["labels", "add", str(path), str(csv_file), "--by", "anna"]) == 0
    return path, rows, truth


def test_true_figures_lie_in_their_intervals(labelled_archive):
    path, rows, truth = labelled_archive
    report = monitor(path)
    true_classes = np.array([0 if truth[instance_id] == "a" else 1 for instance_id in rows.ids])
    weights = rows.weights
    true_figures = {
        ("deployed", None): np.average(rows.answers == true_classes, weights=weights),
        ("high-cost", None): np.average(rows.cloud_label == true_classes, weights=weights),
        ("deployed", "a"): np.average(
            rows.answers[true_classes == 0] == 0, weights=weights[true_classes == 0]
        ),
        ("high-cost", "b"): np.average(
            rows.cloud_label[true_classes == 1] == 1, weights=weights[true_classes == 1]
        ),
    }
    figures = {(figure.system, figure.of): figure for figure in report.figures}
    for key, true_figure in true_figures.items():
        assert figures[key].low < true_figure < figures[key].high, key
        # The high-cost model's predictions do not widen the interval of the labels alone.
        low, high = figures[key].labels_alone
        assert figures[key].high - figures[key].low < 1.05 * (high - low)
    assert report.n_labels == report.n_chosen
    assert report.n_instances == pytest.approx(rows.weights.sum())


def test_monitor_exits_with_an_alarm_if_the_promise_is_broken(labelled_archive, tmp_path, capsys):
    path, *_ = labelled_archive
    metrics_file = tmp_path / "truth.prom"
    assert main(["monitor", str(path), "--metrics", str(metrics_file)]) == 1  # 0.99 was promised
    output, message = capsys.readouterr()
    assert main(["monitor", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["alarm"]
    assert document["figures"][0]["low"] < document["figures"][0]["value"]
    assert "accuracy" in output
    assert "right less often than its bundle promises" in message
    assert 'gatewise_true_accuracy{model="tiny",version="1",system="deployed"} 0.' in (
        metrics_file.read_text()
    )
    assert 'gatewise_true_accuracy_alarm{model="tiny",version="1"} 1' in metrics_file.read_text()


def test_estimates_without_labels_have_no_interval(tmp_path):
    open_folder(tmp_path).add(make_archived_rows(50), FACTS, NOW)
    report = monitor(tmp_path)
    assert report.n_labels == 0
    assert report.figures[0].value is not None
    assert report.figures[0].low is None
    assert "gatewise_true_accuracy_low{" not in metrics_text(report)


def test_metrics_escape_the_name_of_the_model(tmp_path):
    facts = msgspec.structs.replace(FACTS, model='a"b\\c\nd')
    open_folder(tmp_path).add(make_archived_rows(5), facts, NOW)
    families = list(text_string_to_metric_families(metrics_text(monitor(tmp_path))))
    samples = [sample for family in families for sample in family.samples]
    assert {sample.labels["model"] for sample in samples} == {facts.model}


def test_days_limits_the_report_to_the_last_days(tmp_path):
    rows = make_archived_rows(50)
    rows.time[:30] -= 10 * 86_400
    open_folder(tmp_path).add(rows, FACTS, NOW)
    assert (monitor(tmp_path).n_rows, monitor(tmp_path, days=5).n_rows) == (50, 20)
    with pytest.raises(InputError, match="has tiny/1, not 9"):
        monitor(tmp_path, version="9")


def test_an_existing_file_is_not_overwritten(labelled_archive, tmp_path, capsys):
    path, *_ = labelled_archive
    open_folder(path).add(make_archived_rows(20, seed=5), FACTS, NOW + 5)
    assert main(["labels", "choose", str(path), "--out", str(tmp_path / "to-label.csv")]) == 2
    assert "exists" in capsys.readouterr().err
    assert len((tmp_path / "to-label.csv").read_text().splitlines()) > 1


def test_a_refused_choice_writes_no_file_and_uses_no_instance(tmp_path, capsys):
    path = tmp_path / "kept"
    open_folder(path).add(make_archived_rows(50), FACTS, NOW)
    csv_file = tmp_path / "to-label.csv"
    page = tmp_path / "label.html"
    page.write_text("another page")
    command = ["labels", "choose", str(path), "--n", "20", "--out", str(csv_file)]
    assert main([*command, "--page", str(page)]) == 2
    assert f"{page} exists" in capsys.readouterr().err
    assert main([*command, "--page", str(csv_file)]) == 2
    assert "different files" in capsys.readouterr().err
    # the choice cannot be recorded, because its folder is a file
    (path / "labels").write_text("")
    assert main(command) != 0
    assert "labels: File exists" in capsys.readouterr().err
    (path / "labels").unlink()
    assert not csv_file.exists()
    assert main(command) == 0
    assert len(csv_file.read_text().splitlines()) > 1


def test_instances_that_no_choice_covers_do_not_enter_the_estimate(labelled_archive, tmp_path):
    """Labels could not correct the high-cost model's answers to these instances."""
    path, *_ = labelled_archive
    report_before = monitor(path)
    later_rows = make_archived_rows(500, seed=3)
    later_rows.probabilities[:] = [0.001, 0.999]  # certain and wrong predictions
    later_rows.cloud_label[:] = 1
    open_folder(path).add(later_rows, FACTS, NOW + 5)
    report_after = monitor(path)
    assert report_after.figures == report_before.figures
    assert report_after.n_rows == report_before.n_rows
    assert report_after.n_labels == report_before.n_labels
    csv_file = tmp_path / "later.csv"
    command = ["labels", "choose", str(path), "--n", "60", "--out", str(csv_file), "--seed", "1"]
    assert main(command) == 0
    header, *lines = csv_file.read_text().splitlines()
    labelled_lines = [line.replace(",,", ",a,", 1) for line in lines]  # the label is empty
    csv_file.write_text("\n".join([header, *labelled_lines]))
    assert main(["labels", "add", str(path), str(csv_file)]) == 0
    report_with_later = monitor(path)
    assert report_with_later.n_rows == report_before.n_rows + len(later_rows)
    assert report_with_later.figures[0].value < report_before.figures[0].value


@pytest.fixture
def labelled_days(tmp_path):
    """The path of an archive of ten daily shards, and the times of its 400 labelled instances.

    The high-cost model answers all instances, is right for 96 % of them, and 95 % are promised.
    """
    rng = np.random.default_rng(0)
    folder = open_folder(tmp_path / "kept")
    n_rows = 400
    truth = {}
    for day in range(10):
        true_class = rng.integers(0, 2, n_rows)
        cloud_label = np.where(rng.random(n_rows) < 0.96, true_class, 1 - true_class)
        rows = replace(
            make_archived_rows(n_rows, seed=day, audit_share=0.0),
            time=NOW + DAY_SECONDS * (day + np.sort(rng.random(n_rows))),
            cloud_label=cloud_label.astype(np.int32),
            probabilities=np.where(cloud_label[:, None] == [0, 1], 0.97, 0.03).astype(np.float32),
        )
        truth |= dict(
            zip(rows.ids.tolist(), np.array(["a", "b"])[true_class].tolist(), strict=True)
        )
        facts = msgspec.structs.replace(FACTS, accuracy=0.95)
        folder.add(rows, facts, NOW + DAY_SECONDS * (day + 1))
    choice = choose(folder.path, 400, rng)
    write_choice(folder.path, choice, "1")
    labels = {row_id: truth[row_id] for row_id in choice.rows.ids.tolist()}
    add_labels(folder.path, labels, by="anna", at=NOW)
    return folder.path, choice.rows.time


def test_labels_of_deleted_shards_do_not_count(labelled_days):
    """The instances from which they were chosen are no longer there to be corrected."""
    path, chosen_times = labelled_days
    assert not monitor(path).alarm
    for shard in shards_in(path)[:8]:
        shard.unlink()
    report = monitor(path)
    n_remaining = np.count_nonzero(chosen_times >= NOW + 8 * DAY_SECONDS)
    assert (report.n_rows, report.n_labels, report.n_chosen) == (800, n_remaining, n_remaining)
    assert not report.alarm


def test_without_the_shards_of_its_labels_an_archive_has_no_interval(labelled_days):
    path, _ = labelled_days
    later_rows = replace(make_archived_rows(50, seed=99), time=np.full(50, NOW + 11 * DAY_SECONDS))
    open_folder(path).add(later_rows, FACTS, NOW + 12 * DAY_SECONDS)
    for shard in shards_in(path)[:10]:
        shard.unlink()
    report = monitor(path)
    assert (report.n_rows, report.n_labels, report.n_chosen) == (50, 0, 0)
    assert report.figures[0].low is None


def test_the_alarm_is_about_the_last_days_only(labelled_days):
    path, chosen_times = labelled_days
    report = monitor(path, days=2)
    for shard in shards_in(path)[:8]:
        shard.unlink()
    n_chosen = np.count_nonzero(chosen_times >= NOW + 8 * DAY_SECONDS)
    assert abs(report.n_chosen - n_chosen) <= 2  # the last instance is not at the end of the day
    assert report.evidence == pytest.approx(monitor(path, days=2).evidence)
