"""``gatewise doctor``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewise.errors import InputError
from gatewise_export.commands.options import BlockFunctions
from gatewise_sim.command_options import with_options
from gatewise_sim.doctor.checkup import examine
from gatewise_sim.doctor.findings import DeviceSettings, Finding
from gatewise_sim.doctor.installation import examine_installation


@with_options(DeviceSettings, but=("bundle", "blocks"))
def doctor(
    bundle: Annotated[
        Path | None, typer.Argument(help="The device's bundle; its model must answer a row.")
    ] = None,
    block: BlockFunctions = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    **options: Any,
) -> None:
    """Find out by round trips what keeps a device from its cloud, and say what to do.

    Without a bundle and a broker: examine this installation, extra by extra.

    Looks at libraries, bundle, clock, certificates, name, port, TLS, login, a request and its
    response, the model's version, rights and delays. Run it on the device, with the options
    that the device has. Exit status 1 if something is wrong.

      gatewise doctor

      gatewise doctor bundle --broker mqtt://localhost --device pi-1

      gatewise doctor bundle --broker mqtts://broker.example --ca-file ca.crt
        --cert-file pi-1.crt --key-file pi-1.key
    """
    settings = DeviceSettings(bundle=bundle, blocks=tuple(block or ()), **options)
    if not (0 < settings.timeout <= 60 and settings.deadline_ms > 0):
        raise InputError("--timeout must lie in 0 to 60 s, and --deadline-ms above 0")
    findings: list[Finding] = []
    alone = bundle is None and settings.broker is None
    for finding in examine_installation() if alone else examine(settings):
        findings.append(finding)
        if not as_json:
            _show(finding)
    problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        document: dict[str, Any] = {
            "healthy": not problems,
            "problems": problems,
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(document))
    elif problems:
        print(f"{problems} problem{'s' * (problems > 1)}; what depends on it was not looked at")
    else:
        print("all is well")
    if problems:
        raise typer.Exit(1)


def _show(finding: Finding) -> None:
    print(f"{finding.state:8} {finding.check:12} {finding.says}", flush=True)
    if finding.remedy:
        print(f"{'':8} {'':12} -> {finding.remedy}", flush=True)


commands: dict[str, Callable[..., None]] = {"doctor": doctor}
