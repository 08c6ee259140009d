"""Tests of the summary of a run on the terminal."""

from __future__ import annotations

from gatewise_sim.report.terminal import print_report
from tests.sim.report.reports import make_report


def test_terminal_shows_figures_summary_and_caveats(capsys):
    print_report(make_report(money=30.0))
    output = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in output.splitlines()}
    assert "1,000 instances" in output
    assert lines["accuracy"].split()[1:3] == ["90.0", "%"]
    assert lines["EUR a month"].split()[3:5] == ["30", "24"]
    assert "lost" not in lines
    assert "offloading every instance" in output
    assert "Assumed, not measured" in output
