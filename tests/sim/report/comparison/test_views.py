"""Comparisons on a terminal and as a page, by the command."""

import json
import re

import pytest

from gatewise.cli import main
from gatewise_sim.report.comparison.figures import BY_KEY, compare_runs
from gatewise_sim.report.comparison.reading import read_runs
from gatewise_sim.report.comparison.views import change_text, comparison_page, verdict
from tests.sim.report.reports import check_in_browser, drawings, simulation


@pytest.fixture
def files(tmp_path):
    """Reports of runs that differ."""
    every = {
        "wifi": simulation(accuracy=0.95, p95=10.0, money=20.0, link="wifi"),
        "4g": simulation(accuracy=0.90, p95=60.0, money=25.0, link="4g"),
        "cheap": simulation(accuracy=0.951, cost=4.0, p95=10.5, money=5.0, link="wifi"),
    }
    for name, report in every.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
    return [str(tmp_path / f"{name}.json") for name in every]


def test_runs_side_by_side_on_a_terminal(files, capsys):
    assert main(["report", *files[:2]]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = {line.split("  ")[0]: line for line in out.splitlines() if line}
    assert re.search(r"95.00 % +90.00 % \(-5.00 pp worse\) *$", lines["accuracy"])
    assert lines["cost per instance"].rstrip().endswith("(0 within)")
    assert "20 EUR" in lines["money a month"]
    assert lines["link"].split() == ["link", "wifi", "4g"]
    assert "Beyond the 95 % intervals: accuracy; " in out


def test_one_run_is_shown_and_many_below_each_other(files, capsys):
    assert main(["report", files[0]]) == 0
    out = capsys.readouterr().out
    assert "95.00 % (94.00 to 96.00 %)" in out
    assert "difference" not in out
    assert main(["report", *files, *files]) == 0
    out = capsys.readouterr().out
    assert "6 runs; *: beyond" in out
    assert re.search(r"4g \(2\) +90.00 % \*", out)
    assert "settings that differ: link" in out


def test_json_is_one_document_and_a_page_is_written(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compared = compare_runs(read_runs(files))
    assert main(["report", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(compared))
    assert [run["name"] for run in compared["runs"]] == ["wifi", "4g", "cheap"]
    assert main(["report", *files, "--html", "compared.html"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "compared.html"
    assert (tmp_path / "compared.html").read_text() == comparison_page(compared)
    for html in ("none/x.html", "."):
        assert main(["report", files[0], "--html", html]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_bad_input_is_one_line_and_2(tmp_path, files, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert main(["report", files[0], str(bad)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gatewise: {bad}: not JSON, or damaged")
    assert err.count("\n") == 1
    assert main(["report"]) == 2
    assert "see `gatewise report --help`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "beyond", "named"),
    [
        ("accuracy", -0.01, True, "worse"),
        ("p95", -1.0, True, "better"),
        ("offload_rate", 0.1, True, "beyond"),
        ("p95", -1.0, False, "within"),
        ("p95", -1.0, None, ""),
    ],
)
def test_the_verdict(key, value, beyond, named):
    assert verdict(BY_KEY[key], {"value": value, "beyond": beyond}) == named


def test_differences_of_shares_are_points():
    assert change_text(BY_KEY["accuracy"], -0.0123) == "-1.23 pp"
    assert change_text(BY_KEY["p95"], 12.0) == "+12 ms"
    assert change_text(BY_KEY["lost"], 0.00002) == "+0.002 pp"
    assert change_text(BY_KEY["cost"], 0.0) == "0"


@pytest.mark.slow  # plots
@pytest.mark.parametrize("count", [1, 2, 9])
def test_what_differs_is_drawn_and_can_be_read_aloud(files, count):
    found = drawings(comparison_page(compare_runs(read_runs((files * 3)[:count]))))
    assert len(found) == (count > 1)
    for svg in found:
        assert "accuracy: wifi" in svg.find("{*}desc").text
    html = comparison_page(compare_runs(read_runs([files[0], files[0]])))
    assert 'role="img"' not in html
    assert "no difference is beyond them" in html


def test_names_are_escaped(tmp_path):
    path = tmp_path / "<em>&.json"
    path.write_text(json.dumps(simulation(link="<i>")))
    other = tmp_path / "b.json"
    other.write_text(json.dumps(simulation(link="<u>")))
    html = comparison_page(compare_runs(read_runs([path, other])))
    assert not re.search("<em>&|<i>|<u>", html)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(360, True), (1200, False)])
def test_a_browser_shows_it_without_a_message(files, browser, tmp_path, width, dark):
    path = tmp_path / "compared.html"
    path.write_text(comparison_page(compare_runs(read_runs(files))))
    check_in_browser(browser, path.as_uri(), width, dark=dark, plots=1, height=200.0)
