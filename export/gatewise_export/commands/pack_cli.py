"""The sub-command ``gatewise pack``, which copies, signs and reduces bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatewise.console import emit
from gatewise.errors import InputError
from gatewise_export.bundle.repacking import repack
from gatewise_export.commands.options import AsJson, BundlePath, Out


def pack(
    bundle: BundlePath,
    out: Out,
    sign: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of the private key that signs the copy; by default the signature stays."
        ),
    ] = None,
    readers: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="workers|device",
            help="Readers of the copy; a copy for a device has no high-cost model.",
        ),
    ] = "workers",
    as_json: AsJson = False,
) -> None:
    """Copy a bundle, for example into one file, with a signature, or for devices.

    The copy has the same manifest, byte for byte. Devices that are started with --public-key accept
    only bundles that the matching private key has signed.

    Example:

        openssl genpkey -algorithm ed25519 -out fleet.key
        openssl pkey -in fleet.key -pubout -out fleet.pub
        gatewise pack bundle --out digits-7.gwb --sign fleet.key --for device
    """
    if readers not in ("workers", "device"):
        raise InputError(f"--for {readers}: give workers or device")
    packed_bundle = repack(bundle, out, sign=sign, for_device=readers == "device")
    key_id = next(iter(packed_bundle.claimed_key_ids()), None)
    absent_files = packed_bundle.absent_files()
    n_bytes = _count_bytes(out)
    if as_json:
        emit(
            {
                "bundle": str(out),
                "bytes": n_bytes,
                "key_id": key_id,
                "left_out": list(absent_files),
            }
        )
        return
    signature_text = "not signed" if key_id is None else f"signed by key {key_id}"
    absent_text = "".join(f", without {name}" for name in absent_files)
    print(f"{out}: {packed_bundle.manifest.title}, {n_bytes} bytes, {signature_text}{absent_text}")


def _count_bytes(path: Path) -> int:
    """Count the bytes of a bundle, which is one file or a directory without subdirectories."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
