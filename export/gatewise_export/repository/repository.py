"""The operator's side of updates: a folder of static files that any web server can serve.

::

    <folder>/metadata/    1.root.json, ..., timestamp.json: signed, see the TUF specification
    <folder>/targets/     <model>/<version>/<sha256>.<file>

Roles are signed by Ed25519 keys in a folder of their own, which is never served: ``root`` names
the keys of all roles, ``targets`` the files, ``snapshot`` and ``timestamp`` what is current; these
two expire soon, so that a device notices when it is kept from news. Files are written before what
names them and ``timestamp.json`` last: a writer that is killed leaves the repository as it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tuf.api.metadata import TargetFile

from gatewise.errors import InputError
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest import FileSpec
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.storage import replace_file
from gatewise_export.repository.release import (
    RELEASE,
    WHOLE,
    OfferedRelease,
    Release,
    check_name,
    read_offers,
)
from gatewise_export.repository.signed_metadata import SignedMetadata


class Repository(SignedMetadata):
    """A repository of releases and the keys that sign it.

    `folder`: of a repository that :meth:`init` made. `keys`: folder of private keys, NAME.key as
    ``gatewise keygen`` writes them; by default ``<folder>.keys``. Each change needs those of the
    roles that it signs. Raises InputError if there is no repository, its metadata do not verify, or
    a key cannot be read.
    """

    # -- reading ---------------------------------------------------------------------------

    def offers(self) -> list[OfferedRelease]:
        """The releases, the wanted ones first."""
        return read_offers(self._signed["targets"].signed)

    def latest(self, model: str | None = None) -> OfferedRelease:
        """Get the release that is offered before all others.

        Raises InputError if none is offered, or there are several models and none is named.
        """
        models = {o.model for o in self.offers()}
        if model is None and len(models) > 1:
            raise InputError(f"which model: {', '.join(sorted(models))}?")
        offered = [o for o in self.offers() if o.rollout and model in (None, o.model)]
        if not offered:
            raise InputError("no release is offered")
        return offered[0]

    def release(self, offer: OfferedRelease) -> Release:
        """Read the ``release.json`` of an offer."""
        return Release.from_json(self._target_path(offer.path, offer.digest).read_bytes())

    # -- changing --------------------------------------------------------------------------

    def add(
        self,
        bundle: str | Path,
        *,
        hardware: Sequence[str] = (),
        sign: str | Path | None = None,
    ) -> Release:
        """Add a bundle's files as a release, not offered to any device yet.

        The high-cost model is left out; `sign` is the key that signs the manifest, as of
        ``gatewise pack``. Raises BundleError if the bundle cannot be read, InputError if this
        version is there with other files.
        """
        with self._changing(), tempfile.TemporaryDirectory() as temporary:
            packed = repack(bundle, Path(temporary) / "bundle", sign=sign, for_device=True)
            manifest = packed.manifest
            files = {path.name: path.read_bytes() for path in packed.path.iterdir()}
            where = (
                f"{check_name('model', manifest.name)}/{check_name('version', manifest.version)}"
            )
            targets = {
                name: TargetFile.from_data(f"{where}/{name}", content, ["sha256"])
                for name, content in files.items()
            }
            release = Release(
                manifest.name,
                manifest.version,
                {n: FileSpec(t.hashes["sha256"], t.length) for n, t in targets.items()},
                manifest.acquired_names,
                manifest.min_runtime_version,
                tuple(hardware),
            )
            if release.files.get(RELEASE) is not None:
                raise BundleError(f"bundle {bundle}: {RELEASE} is no name for a model")
            files[RELEASE] = release.to_json()
            target = TargetFile.from_data(f"{where}/{RELEASE}", files[RELEASE], ["sha256"])
            known = self._signed["targets"].signed.targets.get(target.path)
            if known is not None:
                if known.hashes == target.hashes:
                    return release
                raise InputError(f"{where} is there with other files: give it another version")
            target.unrecognized_fields["custom"] = {"serial": 0, "rollout": 0}
            for name, each in (targets | {RELEASE: target}).items():
                path = self._target_path(each.path, each.hashes["sha256"])
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, files[name])
                self._signed["targets"].signed.targets[each.path] = each
            self._write("targets", "snapshot", "timestamp")
        return release

    def publish(self, name: str, rollout: float = 1.0) -> OfferedRelease:
        """Offer a release, ``model/version``, to a share of the devices, before all others.

        Raises InputError if there is no such release, or the share is not above 0 and at most 1.
        """
        if not 0 < rollout <= 1:
            raise InputError(f"a rollout of {rollout:g}; give a share above 0, at most 1 (100%)")
        with self._changing():
            offer = self._find(name)
            others = [o for o in self.offers() if o.model == offer.model and o != offer]
            serial = offer.serial
            if not serial or any(o.serial > serial for o in others):
                serial = 1 + max((o.serial for o in others), default=0)
            return self._offer(offer, serial, max(1, round(rollout * WHOLE)))

    def rollback(self, model: str | None = None) -> OfferedRelease:
        """Withdraw the release that is offered before all others; devices leave it.

        Raises InputError if none is offered, or there are several models and none is named.
        """
        with self._changing():
            latest = self.latest(model)
            return self._offer(latest, latest.serial, 0)

    # -- parts -----------------------------------------------------------------------------

    def _target_path(self, path: str, digest: str) -> Path:
        folder, _, name = path.rpartition("/")
        return self.folder / "targets" / folder / f"{digest}.{name}"

    def _find(self, name: str) -> OfferedRelease:
        found = [o for o in self.offers() if name in (str(o), o.version)]
        if len(found) != 1:
            there = ", ".join(map(str, self.offers())) or "none"
            how = "several releases" if found else "no release"
            raise InputError(f"{how} named {name!r}; the repository holds: {there}")
        return found[0]

    def _offer(self, offer: OfferedRelease, serial: int, rollout: int) -> OfferedRelease:
        target = self._signed["targets"].signed.targets[offer.path]
        target.unrecognized_fields["custom"] = {"serial": serial, "rollout": rollout}
        self._write("targets", "snapshot", "timestamp")
        return self._find(str(offer))
