"""The command ``gatewise doctor``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from gatewise.console import emit
from gatewise.formats import plural
from gatewise.settings import with_options
from gatewise_export.commands.options import AsJson
from gatewise_sim.doctor.checkup import examine
from gatewise_sim.doctor.findings import Finding
from gatewise_sim.doctor.settings import DeviceSettings


@with_options
def doctor(settings: DeviceSettings, as_json: AsJson = False) -> None:
    r"""Diagnose a device's connection to its cloud, and suggest remedies.

    Checks the installation, the bundle, the broker (port, TLS, login, access rights), one request
    with its response, and the worker. Run it on the device with the options of gatewise edge.
    Without options it checks the installed libraries of each extra. Exits 1 if it finds a problem.

    Examples:

        gatewise doctor
        gatewise doctor bundle --broker mqtt://localhost --device pi-1
        gatewise doctor bundle --broker mqtts://broker.example --ca-file ca.crt \
            --cert-file pi-1.crt --key-file pi-1.key
    """
    findings: list[Finding] = []
    for finding in examine(settings):
        findings.append(finding)
        if not as_json:
            _show(finding)
    n_problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        emit(
            {
                "healthy": not n_problems,
                "problems": n_problems,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    elif n_problems:
        print(f"{plural(n_problems, 'problem')}; checks that depend on a failed check were skipped")
    else:
        print("no problems")
    if n_problems:
        raise typer.Exit(1)


def _show(finding: Finding) -> None:
    print(f"{finding.state:8} {finding.check:12} {finding.text}", flush=True)
    if finding.remedy:
        print(f"{'':8} {'':12} -> {finding.remedy}", flush=True)
