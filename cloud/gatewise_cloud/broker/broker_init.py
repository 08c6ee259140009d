"""Set-up of a secured broker: a folder with certificates, an access list and a configuration.

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
import ipaddress
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
    PRIVATE_MODE,
    PUBLIC_MODE,
    Authority,
    CertificateFiles,
    host_names,
    read_certificate,
)
from gatewise_cloud.broker.broker_files import (
    REVOKED,
    access_list,
    has_live_control,
    read_client_names,
    rights_json,
    secure_config,
    split_names,
)
from gatewise_edge.link.wire import MAX_PAYLOAD
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.storage import replace_file

_ROLES: Final = ("devices", "workers", "operators", "labellers")
#: Settings that the roster stores and that a later call need not repeat.
_STORED_SETTINGS: Final = ("port", "at", "data", "run_as", "plugin", "bind_ids")
#: Time before its expiry at which a call renews a certificate.
_RENEWAL_PERIOD: Final = datetime.timedelta(days=30)
_PLUGIN: Final = "mosquitto_dynamic_security.so"
#: Folders in which packages of Linux distributions and of Homebrew install plugins.
_PLUGIN_FOLDERS: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")

_Port = Annotated[int, Meta(ge=1, le=65535)]
#: Size of a message; MQTT's length field of 4 bytes allows 268,435,455.
_MessageSize = Annotated[int, Meta(ge=1024, le=268_435_455)]
_Names = tuple[str, ...]


class BrokerSettings(Settings, frozen=True):
    """Settings of :func:`init_broker`; a setting that is None keeps its value of the last call.

    A text ``A,B`` in a tuple of names stands for both names.
    """

    hosts: Annotated[
        _Names,
        typer.Option("--host", help="Name or address of the broker for clients; repeatable."),
    ] = ()
    devices: Annotated[
        _Names, typer.Option(metavar="A,B", help="Devices that get a certificate.")
    ] = ()
    workers: Annotated[
        _Names, typer.Option(metavar="A,B", help="Workers; in the first call worker-1.")
    ] = ()
    operators: Annotated[
        _Names, typer.Option(metavar="A,B", help="Operators; in the first call operator.")
    ] = ()
    labellers: Annotated[
        _Names, typer.Option(metavar="A,B", help="Machines that may send labels of instances.")
    ] = ()
    revoke: Annotated[
        _Names,
        typer.Option(metavar="A,B", help="Clients that lose their certificate and their rights."),
    ] = ()
    renew: Annotated[
        _Names, typer.Option(metavar="A,B", help="Clients that get a new certificate.")
    ] = ()
    bundles: Annotated[
        tuple[Path, ...],
        typer.Option("--bundle", help="Bundle; its largest request must fit. Repeatable."),
    ] = ()
    port: Annotated[_Port | None, typer.Option(help="TCP port; by default 8883.")] = None
    max_message: Annotated[
        _MessageSize | None, typer.Option(help="Largest message, in bytes; by default 131072.")
    ] = None
    at: Annotated[
        str | None, typer.Option(help="Path of DIR on the broker's machine; by default DIR.")
    ] = None
    data: Annotated[
        str | None,
        typer.Option(help="Folder for messages on the broker's machine; by default DIR/data."),
    ] = None
    run_as: Annotated[
        str | None, typer.Option(help="User that mosquitto runs as if root starts it.")
    ] = None
    plugin: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|auto|none",
            help="Path of mosquitto_dynamic_security.so on the broker's machine. auto, the "
            "default: its path on this machine, or none with --at. none: only the access list, "
            "which refuses no subscription.",
        ),
    ] = None
    bind_ids: Annotated[
        bool | None,
        typer.Option(
            "--bind-ids/--free-ids",
            help="Allow one session per certificate, the default, or any number.",
        ),
    ] = None


class Roster(Record, frozen=True, kw_only=True):
    """Clients of a broker by role, and its stored settings: the file ``roster.json``.

    The fields have the same meaning as in :class:`BrokerSettings`.
    """

    hosts: _Names = ()
    port: _Port = 8883
    max_message: _MessageSize = MAX_PAYLOAD
    at: str | None = None
    data: str | None = None
    run_as: str | None = None
    plugin: str = "auto"
    bind_ids: bool = True
    pool: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))
    devices: _Names = ()
    workers: _Names = ()
    operators: _Names = ()
    labellers: _Names = ()
    revoked: _Names = ()

    @property
    def clients(self) -> dict[str, str]:
        """Role of each client, by name; InputError if a client has two roles."""
        roles: dict[str, str] = {}
        for role in _ROLES:
            for name in getattr(self, role):
                if roles.setdefault(name, role) != role:
                    raise InputError(
                        f"client {name!r} is among the {roles[name]} and the {role}: choose one"
                    )
        return roles

    def with_changes(self, settings: BrokerSettings, *, is_new: bool) -> Roster:
        """Make the roster with the changes of a call.

        Raises InputError if a client to revoke or renew is unknown, or if a host is not valid.
        """
        # check the clients to revoke and to renew, and list the new clients
        clients_to_revoke = read_client_names(settings.revoke)
        # a client may be revoked again, because the broker may have been out of reach before
        unknown_clients = {*clients_to_revoke} - {*self.revoked} | {
            *read_client_names(settings.renew)
        }
        for name in sorted(unknown_clients - self.clients.keys()):
            raise InputError(
                f"client {name!r} cannot be revoked or renewed: it is not on the roster"
            )
        new_clients = {role: read_client_names(getattr(settings, role)) for role in _ROLES}
        if is_new:
            new_clients["workers"] = new_clients["workers"] or ("worker-1",)
            new_clients["operators"] = new_clients["operators"] or ("operator",)
        clients_by_role: dict[str, Any] = {}
        for role in _ROLES:
            remaining_clients = [
                name for name in getattr(self, role) if name not in clients_to_revoke
            ]
            clients_by_role[role] = tuple(dict.fromkeys([*remaining_clients, *new_clients[role]]))
        if not clients_by_role["operators"]:
            raise InputError(
                "no operator would remain to change the running broker: name another "
                "(gatewise broker init DIR --revoke OLD --operators NEW), and restart the broker"
            )
        # a client that is added again is no longer revoked
        present_clients = {name for role in _ROLES for name in clients_by_role[role]}
        all_revoked_clients = dict.fromkeys([*self.revoked, *clients_to_revoke])
        stored_settings = {name: getattr(settings, name) for name in _STORED_SETTINGS}
        roster = msgspec.structs.replace(
            self,
            **{name: setting for name, setting in stored_settings.items() if setting is not None},
            **clients_by_role,
            hosts=split_names(settings.hosts) or self.hosts,
            max_message=_choose_max_message(settings, self.max_message),
            revoked=tuple(name for name in all_revoked_clients if name not in present_clients),
        )
        if not roster.hosts:
            raise InputError("no host: give a name or address of the broker for clients (--host)")
        for host in roster.hosts:
            if any(character.isspace() or character in "/@" for character in host):
                raise InputError(
                    f"host {host!r}: give a name or an address, without mqtts:// and port"
                )
        return roster


@dataclass(slots=True)
class BrokerFolder:
    """Result of :func:`init_broker`.

    `folder` holds the files, and `config` is the file of the broker's configuration. `roster` lists
    the clients of all calls. `issued_certificates` and `revoked_clients` are those of this call.
    `plugin` is the dynamic security plugin. Without it only the access list applies, which refuses
    no subscription.
    """

    folder: Path
    config: Path
    roster: Roster
    plugin: PurePath | None
    issued_certificates: list[Path] = field(default_factory=list)
    revoked_clients: tuple[str, ...] = ()

    @property
    def has_live_control(self) -> bool:
        """Whether clients can be added and revoked while the broker runs."""
        return has_live_control(self.plugin, bind_ids=self.roster.bind_ids)

    def client_arguments(self, name: str) -> dict[str, str]:
        """Return the files of the client `name`, as arguments for ``MqttLink`` and ``Worker``."""
        clients_folder = self.folder / "clients"
        return {
            "ca_file": str(self.folder / "ca.crt"),
            "cert_file": str(clients_folder / f"{name}.crt"),
            "key_file": str(clients_folder / f"{name}.key"),
        }

    def worker_arguments(self, name: str) -> dict[str, str]:
        """Return the files and the pool of the worker `name`, as arguments for ``Worker``."""
        return self.client_arguments(name) | {"pool": self.roster.pool}


def init_broker(
    folder: str | Path,
    settings: BrokerSettings | None = None,
    *,
    clock: Callable[[], datetime.datetime] | None = None,
    **options: Any,
) -> BrokerFolder:
    """Make or extend the `folder` of a broker with TLS, client certificates and an access list.

    `options` are fields of `settings`. Clients keep their certificates. A revocation takes effect
    when the broker is restarted, or immediately through :mod:`.broker_control`. If root calls this
    function, the user `run_as` becomes the owner of the server's key and of the messages.

    With `bind_ids` a certificate allows one session. Otherwise several workers may share a
    certificate, and a device may leave many sleeping sessions. `clock` returns a time with its
    zone.

    Raises InputError if a name cannot be a topic level, has two roles or is unknown, or if a file
    cannot be used.
    """
    # read the roster and apply the settings
    settings = msgspec.structs.replace(settings or BrokerSettings(), **options)
    clock = clock or (lambda: datetime.datetime.now(datetime.UTC))
    folder = Path(folder)
    is_new = not (folder / "roster.json").exists()
    roster = Roster() if is_new else read_roster(folder)
    roster = roster.with_changes(settings, is_new=is_new)
    clients = roster.clients
    # write the certificates and the other files
    (folder / "clients").mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(mode=0o700, exist_ok=True)
    broker_folder = BrokerFolder(
        folder,
        folder / "mosquitto.conf",
        roster,
        _find_plugin_path(roster),
        revoked_clients=read_client_names(settings.revoke),
    )
    _issue_certificates(
        broker_folder,
        clients,
        (*broker_folder.revoked_clients, *read_client_names(settings.renew)),
        clock,
    )
    _write_files(broker_folder, len(clients))
    # let the user run_as read them
    if roster.run_as is not None and os.geteuid() == 0:
        for name in ("server.key", "data", "acl", "rights.json"):
            try:
                shutil.chown(folder / name, roster.run_as)
            except LookupError:
                raise InputError(
                    f"run as {roster.run_as!r}: no such user on this machine"
                ) from None
    return broker_folder


def read_roster(folder: Path) -> Roster:
    """Read the roster of a folder that :func:`init_broker` made."""
    path = folder / "roster.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}): restore it") from None
    return decode_json(content, Roster, str(path))


def register_devices(folder: Path, names: Iterable[str]) -> BrokerFolder:
    """Add devices that already have certificates, without reading the other certificates."""
    roster = read_roster(folder).with_changes(BrokerSettings(devices=tuple(names)), is_new=False)
    broker_folder = BrokerFolder(
        folder, folder / "mosquitto.conf", roster, _find_plugin_path(roster)
    )
    _write_files(broker_folder, len(roster.clients))
    return broker_folder


def find_plugin() -> Path | None:
    """Find mosquitto's dynamic security plugin on this machine."""
    for pattern in (_PLUGIN, f"*/{_PLUGIN}"):
        for folder in _PLUGIN_FOLDERS:
            for path in sorted(Path(folder).glob(pattern)):
                return path
    return None


def _find_plugin_path(roster: Roster) -> PurePath | None:
    if roster.plugin == "auto":
        return find_plugin() if roster.at is None else None
    return None if roster.plugin == "none" else PurePath(roster.plugin)


def _issue_certificates(
    broker_folder: BrokerFolder,
    clients: dict[str, str],
    replaced_clients: Iterable[str],
    clock: Callable[[], datetime.datetime],
) -> None:
    """Revoke the certificates of `replaced_clients`, and issue missing and expiring ones."""
    folder = broker_folder.folder
    authority = Authority(folder, clock=clock)
    client_files = {
        name: CertificateFiles(
            folder / "clients" / f"{name}.crt", folder / "clients" / f"{name}.key"
        )
        for name in (*replaced_clients, *clients)
    }
    for name in replaced_clients:
        files = client_files[name]
        if files.certificate.exists():
            authority.revoke(read_certificate(files.certificate))
            files.certificate.unlink()
            files.key.unlink(missing_ok=True)
    # issue the server's certificate
    now = clock()
    server_files = CertificateFiles(folder / "server.crt", folder / "server.key")
    hosts = broker_folder.roster.hosts
    if (
        not server_files.are_pair()
        or host_names(read_certificate(server_files.certificate)) != set(map(_canonical, hosts))
        or _expires_soon(server_files, authority, now)
    ):
        authority.issue_server(server_files, hosts)
        broker_folder.issued_certificates.append(server_files.certificate)
    # issue clients' certificates
    for name, role in clients.items():
        files = client_files[name]
        has_certificate = files.certificate.exists()
        # an enrolled device keeps its key, and renews its certificate by another enrolment
        if has_certificate and not files.key.exists():
            continue
        if not has_certificate or _expires_soon(files, authority, now):
            authority.issue_client(files, name, role)
            broker_folder.issued_certificates.append(files.certificate)


def _write_files(broker_folder: BrokerFolder, n_clients: int) -> None:
    """Write the configuration, the rights and the roster."""
    roster = broker_folder.roster
    config = secure_config(
        broker_folder.folder.resolve() if roster.at is None else PurePath(roster.at),
        port=roster.port,
        data_folder=None if roster.data is None else PurePath(roster.data),
        run_as=roster.run_as,
        plugin=broker_folder.plugin,
        bind_ids=roster.bind_ids,
        n_clients=n_clients,
        max_message_bytes=roster.max_message,
    )
    replace_file(broker_folder.config, config.encode(), PUBLIC_MODE)
    # newer versions of mosquitto refuse an access list that other users may read
    private_files = {
        "acl": access_list(roster.workers, roster.operators, roster.labellers).encode(),
        "rights.json": rights_json(broker_clients(roster), roster.pool),
        "clients/pool": f"{roster.pool}\n".encode(),
        "roster.json": encode_json(roster, indent=1),
    }
    for name, content in private_files.items():
        replace_file(broker_folder.folder / name, content, PRIVATE_MODE)


def broker_clients(roster: Roster) -> dict[str, str]:
    """Return the role of each client in the broker's rights, including revoked clients."""
    return roster.clients | dict.fromkeys(roster.revoked, REVOKED)


def _choose_max_message(settings: BrokerSettings, old_limit_bytes: int) -> int:
    """Return the size of the largest message in bytes.

    Without a setting, the old limit rises to the largest request of the bundles.
    """
    request_bytes = {path: Bundle.open(path).manifest.largest_request for path in settings.bundles}
    limit_bytes = settings.max_message or max([old_limit_bytes, *request_bytes.values()])
    for path, n_bytes in request_bytes.items():
        if n_bytes > limit_bytes:
            raise InputError(
                f"--max-message {limit_bytes}: a request of {path} needs {n_bytes} bytes"
            )
    return limit_bytes


def _canonical(host: str) -> str:
    """Write an IP address as a certificate does; a name stays as it is."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _expires_soon(files: CertificateFiles, authority: Authority, now: datetime.datetime) -> bool:
    """Return whether a certificate expires soon and a new certificate would last longer."""
    expiry = read_certificate(files.certificate).not_valid_after_utc
    return expiry - now < _RENEWAL_PERIOD and expiry < authority.certificate.not_valid_after_utc
