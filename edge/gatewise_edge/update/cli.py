"""The sub-command ``gatewise publish``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gatewise.console import emit
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.update.publisher import publish as announce

__all__ = ["commands", "publish"]


def publish(
    bundle: Annotated[Path, typer.Argument(help="The .gwb file, as it is at --url.")],
    url: Annotated[str, typer.Option(help="https://... where devices fetch it.")],
    key: Annotated[Path, typer.Option(help="NAME.key that signed the bundle.")],
    broker: Annotated[str, typer.Option(help="mqtt(s)://[user:password@]host[:port]")],
    serial: Annotated[
        int | None,
        typer.Option(min=1, help="Greater than the last one; without: the time in seconds."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the broker.")] = 10.0,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of the authorities trusted for mqtts://.")
    ] = None,
    cert_file: Annotated[Path | None, typer.Option(help="The operator's certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its key, for TLS.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Announce a bundle: every device of its model fetches it, proves it and takes it.

    Upload the file first. Going back is the same command with the older file: a device that still
    has it downloads nothing.

    Example:

        gatewise pack bundle --for device --sign fleet.key --out digits-8.gwb

        gatewise publish digits-8.gwb --url https://models.example.org/digits-8.gwb --key fleet.key
        --broker mqtts://broker.example.org
    """
    endpoint = Endpoint(broker, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    announced = announce(bundle, url, key, endpoint, serial=serial, timeout=timeout)
    if as_json:
        emit(asdict(announced) | {"topic": manifest_topic(announced.name)})
    else:
        topic = manifest_topic(announced.name)
        print(f"announced {announced} on {topic}: {announced.size} bytes at {announced.url}")


commands: dict[str, Callable[..., None]] = {"publish": publish}
