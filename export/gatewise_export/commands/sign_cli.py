"""The sub-commands ``gatewise keygen`` and ``pack``: keys, and bundles packed anew. Light."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gatewise.console import emit
from gatewise.errors import InputError
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import PublicKey
from gatewise_export.bundle.signing import keygen as make_keys
from gatewise_export.commands.options import AsJson, BundlePath


def keygen(
    out: Annotated[Path, typer.Option(help="NAME: writes NAME.key and NAME.pub.")],
    as_json: AsJson = False,
) -> None:
    """Make a key pair that signs bundles.

    NAME.key signs; keep it off devices and workers. NAME.pub goes to them all: with --public-key
    they take nothing that is not signed. A key that is there is never overwritten.

    Example:

        gatewise keygen --out fleet
    """
    key, public = make_keys(out)
    key_id = PublicKey(public).key_id
    if as_json:
        emit({"key": str(key), "public_key": str(public), "key_id": key_id})
    else:
        print(f"key {key_id}: {key} signs and stays secret, {public} checks")


def pack(
    bundle: BundlePath,
    out: Annotated[Path, typer.Option(help="Where: a .gwb file, or else a directory.")],
    sign: Annotated[
        Path | None, typer.Option(help="NAME.key: sign it; else a signature goes along.")
    ] = None,
    for_: Annotated[
        str, typer.Option("--for", help="workers (all of it) or device (no high-cost model).")
    ] = "workers",
    as_json: AsJson = False,
) -> None:
    """Pack an existing bundle anew: into one file, signed, or for devices.

    The manifest stays as it is, byte for byte. With --for device the high-cost model is left
    out: this is the file that devices fetch over the air.

    Example:

        gatewise pack bundle --out digits-7.gwb --sign fleet.key --for device
    """
    if for_ not in ("workers", "device"):
        raise InputError(f"--for {for_}: give workers or device")
    made = repack(bundle, out, sign=sign, for_device=for_ == "device")
    keys, size = made.claimed_keys(), _size(out)
    if as_json:
        document = {"bundle": str(out), "bytes": size, "key_id": keys[0] if keys else None}
        emit(document | {"left_out": list(made.absent())})
        return
    signed = f"signed by key {keys[0]}" if keys else "not signed"
    left = "".join(f", without {name}" for name in made.absent())
    print(f"{out}: {made.manifest.title}, {size} bytes, {signed}{left}")


commands: dict[str, Callable[..., None]] = {"keygen": keygen, "pack": pack}


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
