"""Tests of result folders and of CSV files."""

import csv
import errno
import io
import itertools
import json
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_sim.report.output import DEMO, SIMULATION, to_csv
from gatewise_sim.report.run_page import report_files
from tests.sim.report.reports import make_report


@pytest.fixture
def demo_contents(tmp_path: Path) -> dict:
    """Results of a demo by file name."""
    bundle_folder = tmp_path / "a-bundle"
    bundle_folder.mkdir()
    (bundle_folder / "manifest.json").write_text("{}")
    return {
        "bundle": bundle_folder,
        "instances.csv": "a\n1\n",
        "frontier.svg": "<svg/>",
        "report.html": "<p>",
        "report.json": json.dumps({"kind": DEMO.kind}),
    }


@pytest.fixture
def simulation_contents() -> dict:
    """Results of a simulation by file name."""
    texts = {name: name for name in SIMULATION.files}
    return {**texts, "report.json": json.dumps({"kind": SIMULATION.kind})}


def list_files(folder: Path) -> set[str]:
    """List the relative paths of all files in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_folder_has_exactly_the_results(tmp_path, demo_contents):
    out_folder = tmp_path / "deep" / "out"
    DEMO.check(out_folder)
    DEMO.write(out_folder, demo_contents)
    assert list_files(out_folder) == {*demo_contents, "bundle/manifest.json"} - {"bundle"}
    assert (out_folder / "report.html").read_text() == "<p>"
    assert (out_folder / "report.html").stat().st_mode & 0o077 == 0o044  # others may read it


def test_earlier_results_are_replaced_and_other_files_stay(tmp_path, demo_contents):
    out_folder = tmp_path / "out"
    DEMO.write(out_folder, demo_contents)
    (out_folder / "notes.txt").write_text("mine")
    (demo_contents["bundle"] / "manifest.json").rename(demo_contents["bundle"] / "stage_0.onnx")
    DEMO.check(out_folder)
    del demo_contents["instances.csv"]
    DEMO.write(out_folder, {**demo_contents, "report.html": "<p>2"})
    assert list_files(out_folder) == {*demo_contents, "bundle/stage_0.onnx", "notes.txt"} - {
        "bundle"
    }
    assert (out_folder / "report.html").read_text() == "<p>2"
    (out_folder / "report.json").unlink()  # an interrupted run leaves no report
    (out_folder / "notes.txt").unlink()
    DEMO.check(out_folder)


def test_failed_write_leaves_the_earlier_results_unchanged(tmp_path, simulation_contents):
    out_folder = tmp_path / "out"
    SIMULATION.write(out_folder, simulation_contents)
    with pytest.raises(UnicodeEncodeError):
        SIMULATION.write(
            out_folder, {**simulation_contents, "policies.csv": "new", "report.html": "\ud800"}
        )
    assert list_files(out_folder) == set(SIMULATION.files)
    assert (out_folder / "policies.csv").read_text() == "policies.csv"


def read_files(folder: Path) -> dict[str, str]:
    """Read all files in a folder that are not hidden, by relative path."""
    names = [name for name in list_files(folder) if not name.startswith(".")]
    return {name: (folder / name).read_text() for name in names}


def fail_at_rename(monkeypatch, failing_index: int, *, is_permanent: bool) -> None:
    """Let one rename fail; with `is_permanent` also all later ones, like a kill."""
    rename_indices = itertools.count()
    rename = Path.rename

    def fail_or_rename(path: Path, target: Path) -> Path:
        index = next(rename_indices)
        if index == failing_index or (is_permanent and index > failing_index):
            raise OSError(errno.EIO, "injected fault")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_or_rename)


#: Renames that replace a demo: six old results, and six new ones.
N_RENAMES = 12


@pytest.fixture
def replaced_demo(tmp_path, demo_contents) -> tuple[Path, dict]:
    """A folder with a demo, and the contents of another demo with one result less and one more."""
    out_folder = tmp_path / "out"
    DEMO.write(out_folder, demo_contents | {"arrivals.csv": "old"})
    new_contents = {name: demo_contents[name] for name in demo_contents if name != "frontier.svg"}
    report_text = json.dumps({"kind": DEMO.kind, "instances": 9})
    return out_folder, new_contents | {
        "timings.toml": "new",
        "classes.csv": "",
        "report.json": report_text,
    }


@pytest.mark.parametrize("rename_index", range(N_RENAMES + 1))
def test_failed_rename_leaves_the_earlier_results_unchanged(
    replaced_demo, monkeypatch, rename_index
):
    out_folder, new_contents = replaced_demo
    files_before = read_files(out_folder)
    fail_at_rename(monkeypatch, rename_index, is_permanent=False)
    if rename_index == N_RENAMES:  # no rename fails
        DEMO.write(out_folder, new_contents)
        assert read_files(out_folder) == {
            "bundle/manifest.json": "{}",
            **{name: text for name, text in new_contents.items() if name != "bundle"},
        }
        return
    with pytest.raises(OSError, match="injected fault"):
        DEMO.write(out_folder, new_contents)
    assert read_files(out_folder) == files_before


@pytest.mark.parametrize("rename_index", range(N_RENAMES))
def test_killed_write_leaves_no_report_beside_files_of_another_run(
    replaced_demo, monkeypatch, rename_index
):
    out_folder, new_contents = replaced_demo
    files_before = read_files(out_folder)
    fail_at_rename(monkeypatch, rename_index, is_permanent=True)
    with pytest.raises(OSError, match="injected fault"):
        DEMO.write(out_folder, new_contents)
    assert not (out_folder / "report.json").exists() or read_files(out_folder) == files_before
    DEMO.check(out_folder)  # the next run may write into the folder


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
    out_folder = tmp_path / "out"
    out_folder.mkdir()
    (out_folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        SIMULATION.check(out_folder)
    assert (out_folder / name).read_text() == content


def test_file_as_output_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    for out_folder in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(InputError, match=r"out is a file, not a folder"):
            DEMO.check(out_folder)


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs /proc of Linux, where no file can be created"
)
def test_folder_without_write_access_is_refused():
    with pytest.raises(InputError, match="cannot write to /proc"):
        SIMULATION.check(Path("/proc/out"))


def read_csv(text: str) -> list[dict[str, str]]:
    """Read the rows of a CSV text."""
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.slow
def test_csv_files_contain_the_figures_of_the_report():
    report = make_report(money=30.0)
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
    # Each of the two bins of the outage has 20 fallbacks.
    assert sum(float(row["fallback"]) for row in timeline) == 40.0
    classes = read_csv(files["classes.csv"])
    assert len(classes) == len(report.system.classes)
    assert classes[5]["accuracy"] == ""  # the class has no instance


@pytest.mark.parametrize(
    ("cell", "written_cell"),
    [
        # Spreadsheets take a text that begins with =, +, -, @ or a tab for a formula.
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
def test_texts_are_not_formulas_in_a_spreadsheet(cell, written_cell):
    assert to_csv([{"class": cell}]) == f"class\n{written_cell}\n"
