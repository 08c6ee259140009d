"""Tests of result folders and of CSV files."""

import csv
import io
import json
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_sim.report.output import DEMO, SIMULATION, to_csv
from gatewise_sim.report.run_page import report_files
from tests.sim.report.reports import made_up


@pytest.fixture
def demo(tmp_path: Path) -> dict:
    """Results of a demo by file name."""
    folder = tmp_path / "a-bundle"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return {
        "bundle": folder,
        "instances.csv": "a\n1\n",
        "frontier.svg": "<svg/>",
        "report.html": "<p>",
        "report.json": json.dumps({"kind": DEMO.kind}),
    }


@pytest.fixture
def simulation() -> dict:
    """Results of a simulation by file name."""
    texts = {name: name for name in SIMULATION.files}
    return {**texts, "report.json": json.dumps({"kind": SIMULATION.kind})}


def list_files(folder: Path) -> set[str]:
    """List the relative paths of all files in a folder."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_folder_has_exactly_the_results(tmp_path, demo):
    out = tmp_path / "deep" / "out"
    DEMO.check(out)
    DEMO.write(out, demo)
    assert list_files(out) == {*demo, "bundle/manifest.json"} - {"bundle"}
    assert (out / "report.html").read_text() == "<p>"
    assert (out / "report.html").stat().st_mode & 0o077 == 0o044


def test_earlier_results_are_replaced_and_other_files_stay(tmp_path, demo):
    out = tmp_path / "out"
    DEMO.write(out, demo)
    (out / "notes.txt").write_text("mine")
    (demo["bundle"] / "manifest.json").rename(demo["bundle"] / "stage_0.onnx")
    DEMO.check(out)
    del demo["instances.csv"]
    DEMO.write(out, {**demo, "report.html": "<p>2"})
    assert list_files(out) == {*demo, "bundle/stage_0.onnx", "notes.txt"} - {"bundle"}
    assert (out / "report.html").read_text() == "<p>2"
    (out / "report.json").unlink()  # an interrupted run leaves no report
    (out / "notes.txt").unlink()
    DEMO.check(out)


def test_failed_write_leaves_the_earlier_results_unchanged(tmp_path, simulation):
    out = tmp_path / "out"
    SIMULATION.write(out, simulation)
    with pytest.raises(UnicodeEncodeError):
        SIMULATION.write(out, {**simulation, "policies.csv": "new", "report.html": "\ud800"})
    assert list_files(out) == set(SIMULATION.files)
    assert (out / "policies.csv").read_text() == "policies.csv"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("thesis.tex", "years of work", "contains other files"),
        ("report.json", '{"kind": "tax"}', "does not belong to a simulation"),
        ("report.json", '{"kind": "gatewise-demo"}', "does not belong to a simulation"),
        ("report.json", "not json", "does not belong to a simulation"),
    ],
)
def test_folder_with_other_files_is_refused_and_unchanged(tmp_path, name, content, message):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(content)
    with pytest.raises(InputError, match=message):
        SIMULATION.check(out)
    assert (out / name).read_text() == content


def test_file_as_output_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(InputError, match=r"out is a file, not a folder"):
            DEMO.check(out)


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs /proc of Linux, where no file can be created"
)
def test_folder_without_write_access_is_refused():
    with pytest.raises(InputError, match="cannot write to /proc"):
        SIMULATION.check(Path("/proc/out"))


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.slow
def test_csv_files_contain_the_figures_of_the_report():
    report = made_up(money=30.0)
    files = report_files(report)
    assert set(files) == set(SIMULATION.files) - {"timings.toml"}
    for row, policy in zip(read_csv(files["policies.csv"]), report.policies, strict=True):
        assert row["key"] == policy.key
        assert float(row["accuracy"]) == policy.accuracy.value
        assert float(row["latency_ms_p95_high"]) == policy.latency_ms["p95"].high
        assert int(row["answers_fallback"]) == policy.answers.fallback
        assert float(row["money_data"]) == policy.money.data
        assert not any(name.startswith("histogram") for name in row)
    timeline = read_csv(files["timeline.csv"])
    assert sum(float(row["fallback"]) for row in timeline) == 40.0
    classes = read_csv(files["classes.csv"])
    assert len(classes) == len(report.system.classes)
    assert classes[5]["accuracy"] == ""


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ("=HYPERLINK(0)", "'=HYPERLINK(0)"),
        ("+1+1", "'+1+1"),
        ("-x", "'-x"),
        ("@SUM", "'@SUM"),
        ("\t=1", "'\t=1"),
        ("-1.5", "-1.5"),
        (-1.5, "-1.5"),
        ("a=b", "a=b"),
    ],
)
def test_texts_are_not_formulas_in_a_spreadsheet(label, written):
    assert to_csv([{"class": label}]) == f"class\n{written}\n"
