"""Reports from files: what is read, and what is refused with its file named."""

import json
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.report.comparison.reading import LARGEST, read_runs
from tests.sim.report.reports import simulation
from tests.support.refused import refused


@pytest.fixture
def write(tmp_path):
    def to(name: str, document) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(document, dict | list):
            document = json.dumps(document)
        path.write_bytes(document.encode() if isinstance(document, str) else document)
        return path

    return to


def refusal(path) -> str:
    return refused(read_runs, [path], says=str(path)).removeprefix(str(path))


def test_a_simulations_figures_come_with_their_intervals(write):
    (run,) = read_runs([write("a.json", simulation(accuracy=0.9, half=0.01, money=30.0))])
    assert run.figures["accuracy"] == Measurement(0.9, 0.9 - 0.01, 0.9 + 0.01)
    assert run.figures["accuracy_cloud_only"].value == pytest.approx(0.95)
    assert "accuracy_edge_only" not in run.figures
    assert run.figures["bytes"].value == 150.0
    assert run.figures["joules"].value == 1.75
    assert run.figures["money"].value == 30.0
    assert "battery_days" not in run.figures
    assert run.currency == "EUR"


def test_names_tell_runs_apart(write):
    one = simulation()
    paths = [write("a/report.json", one), write("b/report.json", one), write("c.json", one)]
    assert [run.name for run in read_runs(paths)] == ["a", "b", "c"]
    assert [run.name for run in read_runs([paths[0].parent, paths[0], paths[1]])] == [
        "a (1)", "a (2)", "b",
    ]  # fmt: skip


def test_a_sweep_stands_for_its_points(write):
    point = {"kind": "gatewise-sweep-point", "digest": "a1", "report": simulation()}
    file = write("out/points/a1.json", point)
    sweep = {
        "kind": "gatewise-sweep",
        "points": [
            {"digest": "a1", "error": "", "settings": {"devices": 5, "outages": ""}},
            {"digest": "b2", "error": "it broke", "settings": {"devices": 6}},
        ],
    }
    (run,) = read_runs([write("out/sweep.json", sweep)])
    assert (run.name, run.file) == ("devices=5, outages=none", str(file))
    assert read_runs([file])[0].name == "a1"
    sweep["points"][0]["error"] = "it broke, too"
    assert refusal(write("out/sweep.json", sweep)) == ": a sweep without a finished point"


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (None, ": no list at points"),
        ([{}], ": points[0] has no digest"),
        ([{"digest": "../../etc/passwd", "settings": {}}], ": points[0] has no digest"),
        ([{"digest": "a1"}], ": points[0] has no settings"),
    ],
)
def test_a_sweep_that_is_none(write, points, said):
    path = write("sweep.json", {"kind": "gatewise-sweep", "points": points})
    assert refusal(path) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": not JSON, or damaged (Expecting value: line 1 column 1 (char 0))"),
        ('{"kind": "gatewise-demo", ', ": not JSON, or damaged"),
        ("[1]", ": not a report: list, not an object"),
        ("{}", ": not a report: kind is None, not one of gatewise-demo, gatewise-simulation"),
        ('{"kind": "junit"}', ": not a report: kind is 'junit'"),
        ('{"kind": NaN}', ": not JSON, or damaged (NaN in it: a report has finite numbers only)"),
        ('{"a": -Infinity}', ": not JSON, or damaged (-Infinity in it"),
        ("[" * 100_000, ": not JSON, or damaged ("),  # each Python says it in its own words
        ('{"a": ' + "9" * 5000 + "}", ": not JSON, or damaged (Exceeds the limit"),
        ("\x00\x01", ": not JSON, or damaged"),
        (b"\xff\xfe\xff", ": not JSON, or damaged"),
    ],
)
def test_what_is_no_report(write, text, said):
    assert refusal(write("x.json", text)).startswith(said)


def test_what_is_not_there(tmp_path):
    assert refusal(tmp_path / "none.json") == ": no such file"
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"folder/report.json: no such file"):
        read_runs([tmp_path / "folder"])
    with pytest.raises(InputError, match="null"):
        read_runs(["a\0b"])


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)  # a hole: no disk is used
    assert refusal(path) == ": more than 64 MB, not a report"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"legs": [{"key": "system"}]}, "legs[0].name: is missing"),
        ({"transport": {"kind": 5}}, "transport.kind"),
        ({"legs": [simulation()["legs"][0] | {"instances": 0}]}, "instances is 0"),
        ({"confidence_level": 10**400}, "confidence_level: is not a finite number"),
    ],
)
def test_a_wrong_field_is_named(write, change, named):
    assert refusal(write("x.json", simulation() | change)).startswith(f": {named}")
