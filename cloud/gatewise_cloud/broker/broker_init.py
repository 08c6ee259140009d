"""The folder of a secured broker: certificates, access list, configuration.

::

    broker/
      mosquitto.conf  acl  rights.json  data/   for mosquitto
      ca.crt  ca.crl  server.crt  server.key
      ca.key                                    keep it off the broker's machine
      clients/pi-1.crt  pi-1.key ...            one pair each for devices, workers, operators
      clients/pool                              name of the workers' pool: a secret of theirs
      roster.json                               who is who

A second call adds to the folder: the authority stays, and so does every certificate but a
server's that is near its end or whose hosts changed.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final, Literal

from gatewise.errors import InputError
from gatewise_cloud.broker.authority import (
    PRIVATE,
    PUBLIC,
    Authority,
    Issued,
    read_certificate,
)
from gatewise_cloud.broker.broker_files import access_list, rights, secure_config
from gatewise_edge.errors import WireError
from gatewise_edge.link.wire import check_device
from gatewise_export.bundle.storage import replace_file

_ROLES: Final = ("devices", "workers", "operators")
_RENEW: Final = datetime.timedelta(days=30)
_PLUGIN: Final = "mosquitto_dynamic_security.so"
_PLUGIN_PLACES: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")


@dataclass(slots=True)
class BrokerFolder:
    """What :func:`init_broker` left behind.

    `config` is the broker's configuration in `folder`, and `port` where it listens.
    `hosts`, `devices`, `workers` and `operators` are all of them, those of former calls included;
    `made` are certificates made by this call, `revoked` clients refused from now on. `pool` is the
    name of the workers' pool (:class:`.Worker`), `plugin` the dynamic security plugin; None: the
    access list rules, which refuses no subscription.
    """

    folder: Path
    config: Path
    hosts: list[str]
    devices: list[str]
    workers: list[str]
    operators: list[str]
    port: int
    pool: str
    plugin: PurePath | None
    made: list[Path] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)

    def client(self, name: str) -> dict[str, str]:
        """Files of the client `name`, as keyword arguments of ``MqttLink`` and ``Worker``."""
        clients = self.folder / "clients"
        return {
            "ca_file": str(self.folder / "ca.crt"),
            "cert_file": str(clients / f"{name}.crt"),
            "key_file": str(clients / f"{name}.key"),
        }

    def worker(self, name: str) -> dict[str, str]:
        """Files of the worker `name` and its pool, as keyword arguments of ``Worker``."""
        return self.client(name) | {"pool": self.pool}


def init_broker(
    folder: str | Path,
    *,
    hosts: Iterable[str] = (),
    devices: Iterable[str] = (),
    workers: Iterable[str] = (),
    operators: Iterable[str] = (),
    revoke: Iterable[str] = (),
    renew: Iterable[str] = (),
    port: int | None = None,
    at: str | PurePath | None = None,
    data: str | PurePath | None = None,
    run_as: str | None = None,
    plugin: str | PurePath | Literal["auto"] | None = "auto",
    bind_ids: bool = True,
    clock: Callable[[], datetime.datetime] | None = None,
) -> BrokerFolder:
    """Make, or add to, the `folder` of a broker with TLS, client certificates and an access list.

    `hosts` are names or addresses that clients know the broker by, needed the first time.
    `devices`, `workers` and `operators` are topic levels; those that have a certificate keep it,
    and the first call makes ``worker-1`` and ``operator`` where none is named. `revoke` names
    clients to refuse from now on (restart the broker), `renew` those that get a new key and
    certificate, the old one being revoked. `port` is 8883 at first, then that of the last call.

    `at` is where the folder will lie on the broker's machine, if it is copied there, `data` where
    the broker keeps messages there, by default ``data`` in the folder. `run_as` is the user that
    mosquitto becomes when started by root; run by root, this gives it the key and the folder of the
    messages. `plugin` is the broker's dynamic security plugin, "auto": where it is found on this
    machine, unless the folder will lie elsewhere. None: the access list rules; it grants every
    subscription, and only the unguessable name of the pool keeps devices from the requests. With
    `bind_ids` a certificate is good for one session at a time; without, several workers may share
    one, and a device may leave many sleeping sessions behind. `clock` gives a time with its zone.

    InputError if a name cannot be a topic level, is given two roles or is not known, or a file
    cannot be used.
    """
    now = (clock or (lambda: datetime.datetime.now(datetime.UTC)))()
    folder = Path(folder)
    roster_file = folder / "roster.json"
    first = not roster_file.exists()
    roster = _empty() if first else _read_roster(roster_file)
    asked = {"devices": _names(devices), "workers": _names(workers), "operators": _names(operators)}
    if first:
        asked["workers"] = asked["workers"] or ["worker-1"]
        asked["operators"] = asked["operators"] or ["operator"]
    roster["hosts"] = list(dict.fromkeys(hosts)) or roster["hosts"]
    roster["port"] = port or roster["port"]
    if not roster["hosts"]:
        raise InputError("no host: say by which name clients know the broker (--host)")
    for host in roster["hosts"]:
        if not host or any(c.isspace() or c in "/@" for c in host):
            raise InputError(f"host {host!r}: give a name or an address, without mqtts:// and port")
    gone, anew = _names(revoke), _names(renew)
    _enrol(roster, asked, gone, anew)

    (folder / "clients").mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(mode=0o700, exist_ok=True)
    authority = Authority(folder, clock=clock)
    if plugin == "auto":
        plugin = find_plugin() if at is None else None
    done = BrokerFolder(
        folder,
        folder / "mosquitto.conf",
        **roster,
        plugin=None if plugin is None else PurePath(plugin),
        revoked=gone,
    )
    for name in (*gone, *anew):
        pair = _pair(folder, name)
        if pair.certificate.exists():
            authority.revoke(read_certificate(pair.certificate))
            pair.certificate.unlink()
            pair.key.unlink(missing_ok=True)
    server = Issued(folder / "server.crt", folder / "server.key")
    if _server_is_due(server, roster["hosts"], authority, now):
        authority.issue_server(server, roster["hosts"])
        done.made.append(server.certificate)
    clients = [(role, name) for role in _ROLES for name in roster[role]]
    for role, name in clients:
        pair = _pair(folder, name)
        if not pair.certificate.exists() or _ends_early(pair, authority, now):
            authority.issue_client(pair, name, role)
            done.made.append(pair.certificate)
    config = secure_config(
        folder.resolve() if at is None else PurePath(at),
        port=done.port,
        data=None if data is None else PurePath(data),
        run_as=run_as,
        plugin=done.plugin,
        bind_ids=bind_ids,
        clients=len(clients),
    )
    replace_file(done.config, config.encode(), PUBLIC)
    # mosquitto warns of, and newer ones refuse, an access list that others may read; the name of
    # the pool is for workers alone.
    private = {
        "acl": access_list(done.workers, done.operators),
        "rights.json": rights(done.devices, done.workers, done.operators, pool=done.pool),
        "clients/pool": f"{done.pool}\n",
        "roster.json": json.dumps(roster, indent=1),
    }
    for file, text in private.items():
        replace_file(folder / file, text.encode(), PRIVATE)
    if run_as is not None and os.geteuid() == 0:
        for path in (server.key, folder / "data", folder / "acl", folder / "rights.json"):
            try:
                shutil.chown(path, run_as)
            except LookupError:
                raise InputError(f"run as {run_as!r}: no such user on this machine") from None
    return done


def find_plugin() -> Path | None:
    """Find mosquitto's dynamic security plugin on this machine."""
    found = (path for place in _PLUGIN_PLACES for path in sorted(Path(place).glob(f"*/{_PLUGIN}")))
    beside = (Path(place) / _PLUGIN for place in _PLUGIN_PLACES)
    return next((path for path in (*beside, *found) if path.is_file()), None)


def _names(names: Iterable[str]) -> list[str]:
    kept = list(dict.fromkeys(names))
    for name in kept:
        try:
            check_device(name)
        except WireError as error:
            raise InputError(f"client {name!r}: {error}") from None
        # They become file names and words of the access list.
        if name != name.strip() or name.startswith((".", "$")) or "\\" in name or len(name) > 60:
            raise InputError(
                f"client {name!r}: a name begins with neither '.' nor '$', has no blanks at its "
                "ends, no backslash and at most 60 characters"
            )
    return kept


def _empty() -> dict[str, Any]:
    clients: dict[str, list[str]] = {role: [] for role in _ROLES}
    return {"hosts": [], "port": 8883, "pool": secrets.token_hex(16), **clients}


def _read_roster(path: Path) -> dict[str, Any]:
    try:
        roster = json.loads(path.read_text("utf-8"))
        new = _empty()
        roster.setdefault("pool", new["pool"])  # written before there was one
        known = {key: type(value)(roster[key]) for key, value in new.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be used ({error!r}): restore it") from None
    return known


def _enrol(
    roster: dict[str, Any], asked: dict[str, list[str]], gone: list[str], anew: list[str]
) -> None:
    """Bring the roster up to date."""
    for name in (*gone, *anew):
        if not any(name in roster[role] for role in _ROLES):
            raise InputError(f"client {name!r} is not on the roster: nothing to revoke or renew")
    seen: dict[str, str] = {}
    for role in _ROLES:
        kept = [name for name in roster[role] if name not in gone]
        roster[role] = list(dict.fromkeys([*kept, *asked[role]]))
        for name in roster[role]:
            if seen.setdefault(name, role) != role:
                raise InputError(f"client {name!r} is among the {seen[name]} and the {role}")


def _pair(folder: Path, name: str) -> Issued:
    clients = folder / "clients"
    return Issued(clients / f"{name}.crt", clients / f"{name}.key")


def _server_is_due(
    server: Issued, hosts: list[str], authority: Authority, now: datetime.datetime
) -> bool:
    if not (server.certificate.exists() and server.key.exists()):
        return True
    from cryptography import x509

    certificate = read_certificate(server.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {str(name.value) for name in names}
    return known != set(hosts) or _ends_early(server, authority, now)


def _ends_early(pair: Issued, authority: Authority, now: datetime.datetime) -> bool:
    """Whether a certificate expires soon, and a new one would last longer."""
    end = read_certificate(pair.certificate).not_valid_after_utc
    return end - now < _RENEW and end < authority.certificate.not_valid_after_utc
