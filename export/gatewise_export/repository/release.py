"""Describe a release: one version of a bundle that devices fetch file by file.

In a repository of The Update Framework each file of a bundle is a target with the path
``<model>/<version>/<file>``. Another target is ``release.json``, which lists the files with their
hashes, and the devices that can run them::

    {"release": 1, "model": "digits", "version": "8", "features": ["a", "b"],
     "runtime": "0.1.0", "hardware": ["aarch64"],
     "files": {"manifest.json": {"sha256": "...", "size": 4821}, ...}}

This file never changes, but its offer can. Devices prefer the offer with the highest serial. The
rollout is the share of devices that get the offer, in units of 1/10000 because signed JSON has no
fractions. Both are in the signed targets metadata, under ``custom``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from gatewise.documents import END, FileName, Meta, Record, Text, decode_json, encode_json
from gatewise.errors import GatewiseError, InputError
from gatewise_export.bundle.manifest_records import FileSpec, version_numbers

if TYPE_CHECKING:
    from tuf.api.metadata import Targets

RELEASE_FILE: Final = "release.json"
#: Largest ``release.json`` that a device fetches, because it is read into memory.
MAX_RELEASE_BYTES: Final = 1 << 20
#: Rollout to all devices.
FULL_ROLLOUT: Final = 10_000

#: Form of a name that may be part of a path.
_NAME_FORM: Final = r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,63}"


class UpdateError(GatewiseError):
    """A repository, release or file that a device refuses.

    `reason` labels a counter:

    - ``fetch``: it cannot be fetched;
    - ``metadata``: its signatures are not valid or have expired, or it is older than before;
    - ``bundle`` and ``self-test``: its content is not valid, or fails the self-test;
    - ``store``: the disk cannot be used.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


ReleaseName = Annotated[
    str,
    Meta(pattern=f"^{_NAME_FORM}{END}", description="a name of a release"),
]


class Release(Record, frozen=True):
    """A version of a model: the document ``release.json``.

    Attributes
    ----------
    model, version : str
    files : dict
        Files of the bundle by name, without the high-cost model.
    features : tuple of str
        Names of the features in the manifest's order.
    runtime : str
        Oldest version of Gatewise that can run it.
    hardware : tuple of str
        Machines that can run it, as ``platform.machine()`` names them; empty for all.
    """

    release: Literal[1]
    model: ReleaseName
    version: ReleaseName
    files: Annotated[dict[FileName, FileSpec], Meta(max_length=4096)]
    features: Annotated[tuple[Text, ...], Meta(max_length=65535)]
    runtime: Text
    hardware: Annotated[tuple[Text, ...], Meta(max_length=64)]

    def __str__(self) -> str:
        return f"{self.model}/{self.version}"

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read ``release.json``; raise InputError if it is malformed."""
        return decode_json(content, cls, RELEASE_FILE)

    def to_json(self) -> bytes:
        """Write ``release.json``; equal releases give equal bytes."""
        return encode_json(self, indent=1)

    def damaged_file(self, folder: Path) -> str | None:
        """Name a file that is missing from a folder or has another hash; None if all are right."""
        for name, file_spec in self.files.items():
            if not has_file(folder / name, file_spec.sha256):
                return name
        return None

    def misfit_reason(
        self, *, model: str, features: Sequence[str], runtime: str, hardware: str
    ) -> str | None:
        """Explain why a device cannot run the release; None if it can.

        `runtime` is the device's version of Gatewise, `hardware` its machine.
        """
        if self.model != model:
            return f"it is for the model {self.model!r}, not {model!r}"
        missing_features = sorted(set(self.features) - set(features))
        if missing_features:
            return f"it needs the feature {missing_features[0]!r}, which this device does not have"
        if version_numbers(self.runtime) > version_numbers(runtime):
            return f"it needs gatewise {self.runtime} or newer; this is {runtime}"
        if self.hardware and hardware not in self.hardware:
            return f"it is for {', '.join(self.hardware)}, not for {hardware}"
        return None


@dataclass(frozen=True)
class OfferedRelease:
    """A release that the repository offers to `rollout` of 10,000 devices.

    Devices prefer the offer with the highest `serial`. `digest` is the SHA-256 of its
    ``release.json``.
    """

    model: str
    version: str
    serial: int
    rollout: int
    digest: str

    def __str__(self) -> str:
        return f"{self.model}/{self.version}"

    @property
    def path(self) -> str:
        """Path of its ``release.json`` among the targets."""
        return f"{self.model}/{self.version}/{RELEASE_FILE}"

    def is_for(self, device: str) -> bool:
        """Whether a device is in the rollout.

        A device's draw is a hash of its id and the release's name. A growing share therefore only
        adds devices, and each release begins with other devices.
        """
        digest = hashlib.sha256(f"{device}\0{self}".encode()).digest()
        # draw / 2^64 < rollout / FULL_ROLLOUT, in whole numbers
        return int.from_bytes(digest[:8]) * FULL_ROLLOUT < self.rollout << 64


def read_offers(targets: Targets) -> list[OfferedRelease]:
    """Read the releases in verified targets metadata, in the order of preference."""
    offers = []
    for path, target in targets.targets.items():
        # a path with fewer parts gets empty parts, and is not the path of a release
        model, version, name = (*path.split("/", 2), "", "")[:3]
        custom: Any = target.custom
        if name == RELEASE_FILE and isinstance(custom, dict):
            serial = custom.get("serial")
            rollout = custom.get("rollout")
            if isinstance(serial, int) and isinstance(rollout, int):
                digest = target.hashes["sha256"]
                offers.append(OfferedRelease(model, version, serial, rollout, digest))
    return sorted(offers, key=lambda offer: -offer.serial)


def has_file(path: Path, sha256: str) -> bool:
    """Whether a file exists and has this hash."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def checked_name(kind: str, name: str) -> str:
    """Return a name that may be part of a path, or raise InputError."""
    if not re.fullmatch(_NAME_FORM, name):
        raise InputError(
            f"{kind} {name!r}: use at most 64 letters, digits, '.', '_' and '-', and do not begin "
            "with '.' or '-'"
        )
    return name


def check_rollout(share: float) -> None:
    """Raise InputError unless a `share` of the devices is above 0 and up to 1."""
    if not 0 < share <= 1:
        raise InputError(f"a rollout of {share:g}: give a share above 0 and at most 1 (100%)")
