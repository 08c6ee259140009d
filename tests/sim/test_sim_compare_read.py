import json
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_sim.compare import measured, read_runs
from gatewise_sim.compare.read import LARGEST
from gatewise_sim.report.legs import to_json

simulation = runpy.run_path(str(Path(__file__).parent / "sweep_jobs.py"))["simulation"]


@pytest.fixture
def write(tmp_path):
    def to(name: str, document) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return to


@pytest.fixture
def demo(report):
    """A report as the demo writes it."""
    return {"kind": "gatewise-demo", **json.loads(to_json(report))}


def refused(path) -> str:
    with pytest.raises(InputError) as caught:
        read_runs([path])
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


def test_a_demos_figures(write, demo):
    (run,) = read_runs([write("report.json", demo)])
    assert (run.kind, run.currency) == ("gatewise-demo", None)
    assert run.figures["accuracy"].value == demo["accuracy"]["system"]
    assert run.figures["bytes"].value == demo["bytes"]["system"] / demo["instances"]
    assert run.figures["cost"].value == demo["cost"]["full"]["system"]
    assert run.figures["p99"].value == demo["latency_ms"]["system"]["p99"]
    assert run.figures["edge"].value == demo["answers"]["edge"] / demo["instances"]
    assert run.figures["p50"].low is None
    assert "money" not in run.figures


def test_wilsons_interval_of_a_demos_accuracy(write, demo):
    """Against scipy's."""
    from scipy.stats import binomtest

    right = round(demo["accuracy"]["system"] * demo["instances"])
    expected = binomtest(right, demo["instances"]).proportion_ci(0.95, "wilson")
    figure = read_runs([write("report.json", demo)])[0].figures["accuracy"]
    assert (figure.low, figure.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.integers(1, 10**6), st.data())
def test_wilsons_interval_holds_the_share_at_both_ends(n, data):
    k = data.draw(st.integers(0, n))
    document = {
        "kind": "gatewise-demo", "instances": n, "offload_rate": k / n,
        "accuracy": {"system": k / n}, "feature_cost": {"system": 1}, "cost_reduction": None,
        "cost": {"full": {"system": 1}}, "bytes": {"system": 1},
        "latency_ms": {"system": dict.fromkeys(("p50", "p95", "p99"), 1)},
        "answers": dict.fromkeys(("edge", "cloud", "fallback", "late", "lost"), 0),
    }  # fmt: skip
    figure = measured(document, "x")["accuracy"]
    assert 0 <= figure.low <= figure.value <= figure.high <= 1
    assert figure.low < figure.high


def test_a_simulations_figures_come_with_their_intervals(write):
    (run,) = read_runs([write("a.json", simulation(accuracy=0.9, half=0.01, money=30.0))])
    assert run.figures["accuracy"] == (0.9, 0.9 - 0.01, 0.9 + 0.01)
    assert run.figures["accuracy_cloud_only"].value == 0.95
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
    assert refused(write("out/sweep.json", sweep)) == ": a sweep without a finished point"


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
    assert refused(path) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": not JSON, or damaged (Expecting value: line 1 column 1 (char 0))"),
        ('{"kind": "gatewise-demo", ', ": not JSON, or damaged"),
        ("[1]", ": not a report: list, not an object"),
        ("{}", ": not a report: kind is None, not one of gatewise-demo, gatewise-simulation"),
        ('{"kind": "junit"}', ": not a report: kind is 'junit'"),
        ('{"kind": NaN}', ": NaN in it: a report has finite numbers only"),
        ('{"a": -Infinity}', ": -Infinity in it"),
        ("[" * 100_000, ": not JSON, or damaged (maximum recursion depth exceeded"),
        ('{"a": ' + "9" * 5000 + "}", ": not JSON, or damaged (Exceeds the limit"),
        ("\x00\x01", ": not JSON, or damaged"),
    ],
)
def test_what_is_no_report(write, text, said):
    assert refused(write("x.json", text)).startswith(said)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff\xfe\xff")
    assert ": not JSON, or damaged" in refused(path)


def test_what_is_not_there(tmp_path):
    assert refused(tmp_path / "none.json") == ": no such file"
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"folder/report.json: no such file"):
        read_runs([tmp_path / "folder"])
    with pytest.raises(InputError, match="null"):
        read_runs(["a\0b"])


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)  # a hole: no disk is used
    assert refused(path) == ": more than 64 MB, not a report"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"instances": None}, ": instances is None; there is nothing to compare"),
        ({"instances": 0}, ": instances is 0.0; there is nothing to compare"),
        ({"instances": "many"}, ": instances is 'many', not a number"),
        ({"instances": True}, ": instances is True, not a number"),
        ({"accuracy": 0.5}, ": no accuracy.system in it"),
        ({"latency_ms": {"system": {"p50": 1}}}, ": no latency_ms.system.p95 in it"),
        ({"answers": {}}, ": no answers.edge in it"),
        ({"legs": None}, ": no list at legs"),
        ({"legs": []}, ": no leg 'system' among legs"),
        ({"legs": [{"key": "system", "accuracy": {"value": 2, "low": 3, "high": 4}}]},
         ": accuracy lies outside of its own interval"),
        ({"money": {"currency": 5}}, ": money.currency is 5, not a text"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_named(write, change, said):
    assert refused(write("x.json", simulation() | change)) == said


@pytest.mark.parametrize("key", ["offload_rate", "bytes", "feature_cost", "cost_reduction"])
def test_a_missing_key_is_named(write, key):
    document = simulation()
    del document[key]
    assert refused(write("x.json", document)).startswith(f": no {key}")


def test_a_number_beyond_all_bounds_is_no_figure(write):
    text = json.dumps(simulation()).replace('"offload_rate": 0.2', '"offload_rate": 1e999', 1)
    assert refused(write("x.json", text)) == ": offload_rate is not a finite number"
    text = text.replace("1e999", "9" * 400)
    assert refused(write("x.json", text)) == ": offload_rate is not a finite number"
