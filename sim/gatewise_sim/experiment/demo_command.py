"""The command ``gatewise demo``."""

from __future__ import annotations

import typer

from gatewise.console import showing_progress
from gatewise.settings import with_options
from gatewise_cloud.signal_handling import exit_on_termination
from gatewise_export.commands.options import AsJson
from gatewise_sim.experiment.demo_settings import DemoSettings


@with_options
def demo(settings: DemoSettings, as_json: AsJson = False) -> None:
    """Train on real data, pack a bundle, deploy it over MQTT, and measure the savings.

    Starts a broker, a cloud worker and devices as real processes, which answer each test instance
    once. Other policies (all edge, all cloud, ...) answer the same instances in virtual time.
    Writes report.html, report.json, frontier.svg, the bundle and the instances to --out. Exits 1
    if an instance was lost.

    Examples:

        gatewise demo
        gatewise demo --dataset wine --link 3g --devices 2
    """
    from gatewise_sim.experiment.demo import run_demo
    from gatewise_sim.report.terminal import show_run

    with exit_on_termination(), showing_progress():
        report = run_demo(settings)
    show_run(report, settings.out, as_json=as_json)
    if report.answers.lost:
        raise typer.Exit(1)
