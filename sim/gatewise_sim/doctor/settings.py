"""Settings of the device that ``gatewise doctor`` examines, and of its broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatewise.documents import Meta
from gatewise.settings import Settings
from gatewise_export.commands import options

if TYPE_CHECKING:
    from gatewise_edge.link.endpoint import Endpoint


class DeviceSettings(Settings, frozen=True):
    """Settings of the device to examine."""

    bundle: Annotated[
        Path | None,
        typer.Argument(help="Bundle of the device; the worker must answer one of its sample rows."),
    ] = None
    broker: Annotated[
        str | None, typer.Option(help="URL of the broker: mqtt(s)://[user:password@]host[:port].")
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Id of the device; by default the name in its certificate.")
    ] = None
    ca_file: options.CaFile = None
    cert_file: Annotated[Path | None, typer.Option(help="Certificate of the device.")] = None
    key_file: options.KeyFile = None
    timeout: Annotated[
        float, Meta(gt=0, le=60), typer.Option(help="Longest wait for each reply, in s.")
    ] = 3.0
    block: options.BlockFunctionsSetting = ()

    @property
    def endpoint(self) -> Endpoint:
        """Address of the broker, with the files for TLS."""
        # imported here, because the doctor also runs where packages of the edge are absent
        from gatewise_edge.link.endpoint import Endpoint

        return Endpoint(
            self.broker or "",
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )
