"""``gatewise edge enrol``: get a certificate for a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatewise.console import print_line


def enrol(
    url: Annotated[
        str,
        typer.Argument(help="https://host[:port] of the server that gatewise broker enrol runs."),
    ],
    token: Annotated[
        str,
        typer.Option(
            envvar="GATEWISE_TOKEN",
            prompt=True,
            help="One-time token that gatewise broker token printed.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for ca.crt, device.crt, device.key.")] = Path(
        "tls"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make this device's key, and get a certificate for it with a one-time token.

    The key never leaves the device. The token tells the device which server to trust.

    Example:

        gatewise edge enrol https://broker.example:8884 --out /etc/gatewise/tls
    """
    from gatewise_edge.service.enrolment import enrol as enrol_device

    enrolment = enrol_device(url.rstrip("/"), token.strip(), out)
    files = f"--ca-file {out}/ca.crt --cert-file {out}/device.crt --key-file {out}/device.key"
    line = f"enrolled as {enrolment['device']}: gatewise edge BUNDLE --broker {enrolment['broker']}"
    print_line(f"{line} --device {enrolment['device']} {files}", enrolment, as_json=as_json)
