"""Folder of a secured broker: certificates, access list, configuration.

::

    broker/
      mosquitto.conf  acl  rights.json  data/   for mosquitto
      ca.crt  ca.crl  server.crt  server.key
      ca.key                                    keep it off the broker's machine
      clients/pi-1.crt  pi-1.key ...            a pair for each device, worker and operator
      clients/pool                              secret name of the workers' pool
      roster.json                               clients by role

A second call adds clients to the folder, and renews certificates that expire soon.
"""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import Meta

from gatewise.documents import Record, decode_json, encode_json
from gatewise.errors import InputError
from gatewise.settings import Settings
from gatewise_cloud.broker.authority import (
    PRIVATE,
    PUBLIC,
    Authority,
    Issued,
    host_names,
    read_certificate,
)
from gatewise_cloud.broker.broker_files import (
    REVOKED,
    access_list,
    has_live_control,
    rights,
    secure_config,
)
from gatewise_edge.errors import WireError
from gatewise_edge.link.wire import MAX_PAYLOAD, check_device
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.storage import replace_file

_ROLES: Final = ("devices", "workers", "operators")
#: Settings that a call without them leaves as they are.
_LASTING: Final = ("port", "at", "data", "run_as", "plugin", "bind_ids")
_RENEW: Final = datetime.timedelta(days=30)
_PLUGIN: Final = "mosquitto_dynamic_security.so"
_PLUGIN_FOLDERS: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")
_LONGEST_NAME: Final = 60

_Port = Annotated[int, Meta(ge=1, le=65535)]
#: Largest payload of MQTT.
_Bytes = Annotated[int, Meta(ge=1024, le=268_435_455)]
_Names = tuple[str, ...]


class BrokerSettings(Settings, frozen=True):
    """Settings of :func:`init_broker`; a setting that is None stays as in the last call.

    A name may also be several, as ``A,B``.
    """

    hosts: Annotated[
        _Names,
        typer.Option("--host", help="Name or address that clients know it by; may be repeated."),
    ] = ()
    devices: Annotated[
        _Names, typer.Option(metavar="A,B", help="Devices that get a certificate.")
    ] = ()
    workers: Annotated[_Names, typer.Option(metavar="A,B", help="Workers; at first worker-1.")] = ()
    operators: Annotated[
        _Names, typer.Option(metavar="A,B", help="Operators; at first operator.")
    ] = ()
    revoke: Annotated[
        _Names, typer.Option(metavar="A,B", help="Clients to refuse from now on.")
    ] = ()
    renew: Annotated[
        _Names, typer.Option(metavar="A,B", help="Clients that get a new certificate.")
    ] = ()
    bundles: Annotated[
        tuple[Path, ...],
        typer.Option("--bundle", help="Bundle whose largest request must fit; may be repeated."),
    ] = ()
    port: Annotated[_Port | None, typer.Option(help="Port; at first 8883.")] = None
    max_message: Annotated[
        _Bytes | None, typer.Option(help="Largest message in bytes; at first 131072.")
    ] = None
    at: Annotated[
        str | None, typer.Option(help="Where DIR lies on the broker's machine; at first here.")
    ] = None
    data: Annotated[
        str | None, typer.Option(help="Where it keeps messages there; at first DIR/data.")
    ] = None
    run_as: Annotated[
        str | None, typer.Option(help="User that mosquitto becomes if root starts it.")
    ] = None
    plugin: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|auto|none",
            help="mosquitto_dynamic_security.so there; auto, at first: where this machine has it, "
            "unless there is an --at; none: the access list, which refuses no subscription.",
        ),
    ] = None
    bind_ids: Annotated[
        bool | None,
        typer.Option(
            "--bind-ids/--free-ids",
            help="One session per certificate (the first time), or any number.",
        ),
    ] = None


class Roster(Record, frozen=True, kw_only=True):
    """Clients of a broker by role, and its lasting settings: ``roster.json``.

    The fields are as in :class:`BrokerSettings`.
    """

    hosts: _Names = ()
    port: _Port = 8883
    max_message: _Bytes = MAX_PAYLOAD
    at: str | None = None
    data: str | None = None
    run_as: str | None = None
    plugin: str = "auto"
    bind_ids: bool = True
    pool: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))
    devices: _Names = ()
    workers: _Names = ()
    operators: _Names = ()
    revoked: _Names = ()

    @property
    def clients(self) -> dict[str, str]:
        """Role of each client, by name; InputError if a client has two."""
        roles: dict[str, str] = {}
        for role in _ROLES:
            for name in getattr(self, role):
                if roles.setdefault(name, role) != role:
                    raise InputError(f"client {name!r} is among the {roles[name]} and the {role}")
        return roles

    def updated(self, settings: BrokerSettings, *, is_new: bool) -> Roster:
        """Make the roster after a call; InputError if a client to revoke or renew is unknown."""
        # clients that leave, and clients that come
        revoked = _client_names(settings.revoke)
        for name in (*revoked, *_client_names(settings.renew)):
            if name not in self.clients:
                raise InputError(
                    f"client {name!r} is not on the roster, and cannot be revoked or renewed"
                )
        new = {role: _client_names(getattr(settings, role)) for role in _ROLES}
        if is_new:
            new["workers"] = new["workers"] or ("worker-1",)
            new["operators"] = new["operators"] or ("operator",)
        names: dict[str, Any] = {}
        for role in _ROLES:
            remaining = [name for name in getattr(self, role) if name not in revoked]
            names[role] = tuple(dict.fromkeys([*remaining, *new[role]]))
        # a client that is added again is no longer refused
        present = {name for role in _ROLES for name in names[role]}
        refused = dict.fromkeys([*self.revoked, *revoked])
        lasting = {name: getattr(settings, name) for name in _LASTING}
        roster = msgspec.structs.replace(
            self,
            **{name: value for name, value in lasting.items() if value is not None},
            **names,
            hosts=_listed(settings.hosts) or self.hosts,
            max_message=_largest_message(settings, self.max_message),
            revoked=tuple(name for name in refused if name not in present),
        )
        if not roster.hosts:
            raise InputError("no host: name the broker as clients know it (--host)")
        for host in roster.hosts:
            if any(c.isspace() or c in "/@" for c in host):
                raise InputError(
                    f"host {host!r}: give a name or an address, without mqtts:// and port"
                )
        return roster


@dataclass(slots=True)
class BrokerFolder:
    """Result of :func:`init_broker`.

    `folder` has the files, and `config` is the broker's configuration there. `roster` has the
    clients of all calls. `issued` are the certificates, and `revoked` the clients of this call.
    `plugin` is the dynamic security plugin; without it the access list applies, which refuses no
    subscription.
    """

    folder: Path
    config: Path
    roster: Roster
    plugin: PurePath | None
    issued: list[Path] = field(default_factory=list)
    revoked: tuple[str, ...] = ()

    @property
    def has_live_control(self) -> bool:
        """Whether clients may be added and revoked while the broker runs."""
        return has_live_control(self.plugin, bind_ids=self.roster.bind_ids)

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
        return self.client(name) | {"pool": self.roster.pool}


def init_broker(
    folder: str | Path,
    settings: BrokerSettings | None = None,
    *,
    clock: Callable[[], datetime.datetime] | None = None,
    **options: Any,
) -> BrokerFolder:
    """Make, or extend, the `folder` of a broker with TLS, client certificates and an access list.

    `options` are fields of `settings`. Clients keep their certificates. `revoke` takes effect when
    the broker is started again, or at once through :mod:`.broker_control`. `run_as` gets the key
    and the messages if root calls this. With `bind_ids` a certificate allows one session; without,
    several workers may share one, and a device may leave many sleeping sessions. `clock` returns a
    time with its zone.

    Raises InputError if a name cannot be a topic level, has two roles or is unknown, or a file
    cannot be used.
    """
    settings = settings or BrokerSettings(**options)
    clock = clock or (lambda: datetime.datetime.now(datetime.UTC))
    folder = Path(folder)
    is_new = not (folder / "roster.json").exists()
    roster = Roster() if is_new else read_roster(folder)
    roster = roster.updated(settings, is_new=is_new)
    clients = roster.clients

    (folder / "clients").mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(mode=0o700, exist_ok=True)
    broker = BrokerFolder(
        folder,
        folder / "mosquitto.conf",
        roster,
        _plugin(roster),
        revoked=_client_names(settings.revoke),
    )
    _issue(broker, clients, (*broker.revoked, *_client_names(settings.renew)), clock)
    _write_texts(broker, len(clients))
    if roster.run_as is not None and os.geteuid() == 0:
        for name in ("server.key", "data", "acl", "rights.json"):
            try:
                shutil.chown(folder / name, roster.run_as)
            except LookupError:
                raise InputError(
                    f"run as {roster.run_as!r}: no such user on this machine"
                ) from None
    return broker


def read_roster(folder: Path) -> Roster:
    """Read the roster of a folder that :func:`init_broker` made."""
    path = folder / "roster.json"
    return decode_json(_read(path), Roster, str(path))


def register_devices(folder: Path, names: Iterable[str]) -> BrokerFolder:
    """Put devices with certificates on the roster, without reading the other certificates."""
    roster = read_roster(folder).updated(BrokerSettings(devices=tuple(names)), is_new=False)
    broker = BrokerFolder(folder, folder / "mosquitto.conf", roster, _plugin(roster))
    _write_texts(broker, len(roster.clients))
    return broker


def find_plugin() -> Path | None:
    """Find mosquitto's dynamic security plugin on this machine."""
    for pattern in (_PLUGIN, f"*/{_PLUGIN}"):
        for folder in _PLUGIN_FOLDERS:
            for path in sorted(Path(folder).glob(pattern)):
                return path
    return None


def _plugin(roster: Roster) -> PurePath | None:
    if roster.plugin == "auto":
        return find_plugin() if roster.at is None else None
    return None if roster.plugin == "none" else PurePath(roster.plugin)


def _issue(
    broker: BrokerFolder,
    clients: dict[str, str],
    revoked: Iterable[str],
    clock: Callable[[], datetime.datetime],
) -> None:
    """Revoke the certificates of `revoked` clients; issue missing and expiring ones."""
    folder = broker.folder
    authority = Authority(folder, clock=clock)
    pairs = {
        name: Issued(folder / "clients" / f"{name}.crt", folder / "clients" / f"{name}.key")
        for name in (*revoked, *clients)
    }
    for name in revoked:
        pair = pairs[name]
        if pair.certificate.exists():
            authority.revoke(read_certificate(pair.certificate))
            pair.certificate.unlink()
            pair.key.unlink(missing_ok=True)
    now = clock()
    server = Issued(folder / "server.crt", folder / "server.key")
    hosts = broker.roster.hosts
    if (
        not (server.certificate.exists() and server.key.exists())
        or host_names(read_certificate(server.certificate)) != set(hosts)
        or _expires_soon(server, authority, now)
    ):
        authority.issue_server(server, hosts)
        broker.issued.append(server.certificate)
    for name, role in clients.items():
        pair = pairs[name]
        has_certificate = pair.certificate.exists()
        # The key of an enrolled device is not here: it renews its certificate by an enrolment.
        if has_certificate and not pair.key.exists():
            continue
        if not has_certificate or _expires_soon(pair, authority, now):
            authority.issue_client(pair, name, role)
            broker.issued.append(pair.certificate)


def _write_texts(broker: BrokerFolder, n_clients: int) -> None:
    """Write the configuration, the rights and the roster."""
    roster = broker.roster
    config = secure_config(
        broker.folder.resolve() if roster.at is None else PurePath(roster.at),
        port=roster.port,
        data=None if roster.data is None else PurePath(roster.data),
        run_as=roster.run_as,
        plugin=broker.plugin,
        bind_ids=roster.bind_ids,
        clients=n_clients,
        max_message=roster.max_message,
    )
    replace_file(broker.config, config.encode(), PUBLIC)
    # Newer versions of mosquitto refuse an access list that others may read.
    private = {
        "acl": access_list(roster.workers, roster.operators).encode(),
        "rights.json": rights(broker_clients(roster), roster.pool),
        "clients/pool": f"{roster.pool}\n".encode(),
        "roster.json": encode_json(roster, indent=1),
    }
    for name, content in private.items():
        replace_file(broker.folder / name, content, PRIVATE)


def broker_clients(roster: Roster) -> dict[str, str]:
    """Role of each client in the broker's rights; revoked ones are refused."""
    return roster.clients | dict.fromkeys(roster.revoked, REVOKED)


def _largest_message(settings: BrokerSettings, before: int) -> int:
    """Bytes of the largest message: as set, or else as before, or as large as the bundles need."""
    needs = {path: Bundle.open(path).manifest.largest_request for path in settings.bundles}
    limit = settings.max_message or max([before, *needs.values()])
    for path, need in needs.items():
        if need > limit:
            raise InputError(f"--max-message {limit}: a request of {path} has {need} bytes")
    return limit


def _listed(texts: Iterable[str]) -> _Names:
    """Split texts at commas; each name once."""
    names = (name.strip() for text in texts for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _client_names(texts: Iterable[str]) -> _Names:
    names = _listed(texts)
    for name in names:
        try:
            check_device(name)
        except WireError as error:
            raise InputError(f"client {name!r}: {error}") from None
        # Names become file names and words of the access list.
        if name.startswith((".", "$")) or "\\" in name or len(name) > _LONGEST_NAME:
            raise InputError(
                f"client {name!r}: give a name of at most {_LONGEST_NAME} characters that begins "
                "with neither '.' nor '$' and has no backslash"
            )
    return names


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}): restore it") from None


def _expires_soon(pair: Issued, authority: Authority, now: datetime.datetime) -> bool:
    """Whether a certificate expires soon, and a new one would last longer."""
    expiry = read_certificate(pair.certificate).not_valid_after_utc
    return expiry - now < _RENEW and expiry < authority.certificate.not_valid_after_utc
