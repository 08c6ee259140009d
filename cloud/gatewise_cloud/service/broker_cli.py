"""Command ``gatewise broker``, which runs a local broker or administers a secured one."""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from gatewise.console import emit, note, print_line, print_table
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise.settings import with_options
from gatewise_cloud.broker.authority import read_certificate
from gatewise_cloud.broker.broker import Broker, EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_cloud.broker.broker_control import (
    apply_roles,
    operator_endpoint,
    read_clients_with_rights,
)
from gatewise_cloud.broker.broker_files import REVOKED
from gatewise_cloud.broker.broker_init import (
    BrokerFolder,
    BrokerSettings,
    broker_clients,
    init_broker,
    read_roster,
)
from gatewise_cloud.broker.enrolment import EnrolmentServer, make_tokens
from gatewise_cloud.broker.rollout_report import read_statuses
from gatewise_cloud.errors import BrokerError
from gatewise_cloud.signal_handling import until_interrupted
from gatewise_edge.errors import LinkError
from gatewise_export.commands.options import Port

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")]
_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of clients.")]
_Folder = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Folder made by gatewise broker init.")
]
_Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL of the broker, mqtts://host[:port]; by default the folder's first host.",
    ),
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)


@app.callback()
def run(
    context: typer.Context,
    port: Port = 1883,
    embedded: Annotated[
        bool | None,
        typer.Option(
            "--embedded/--mosquitto", help="Broker to run; by default mosquitto if it is installed."
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Run an MQTT broker on this machine for a trial, or prepare a secured one with init.

    Clients can be added to a secured broker and revoked while it runs: see add, revoke and list.

    Everyone on this machine may connect to the broker for a trial. The command prints a line that
    begins with `ready:` and names the broker, and runs until SIGTERM or Ctrl-C. The embedded broker
    does not deliver to shared subscriptions: use it with one worker and --plain-subscription.

    Examples:

        gatewise broker --port 1883

        gatewise broker init broker --host broker.example --devices pi-1,pi-2
    """
    if context.invoked_subcommand is not None:
        return
    if embedded is None:
        embedded = find_mosquitto() is None
    broker_class: type[Broker] = EmbeddedBroker if embedded else MosquittoBroker
    with until_interrupted(), broker_class(port) as broker:
        if not broker.has_shared_subscriptions:
            note(
                "note: the embedded broker is for demos. It does not deliver to shared "
                "subscriptions (run one worker, gatewise cloud BUNDLE --broker "
                f"{broker.url} --plain-subscription). It does not publish the last will of a "
                "client that falls silent, and stores neither the session nor the messages of a "
                "client that is disconnected"
            )
        broker_state = {
            "kind": broker.kind,
            "url": broker.url,
            "shared_subscriptions": broker.has_shared_subscriptions,
        }
        ready_text = f"ready: {broker.kind} broker on {broker.url}"
        print_line(ready_text, {"ready": True, **broker_state}, as_json=as_json)
        while broker.is_alive:
            threading.Event().wait(0.2)
        raise BrokerError(broker.port, f"the {broker.kind} broker ended unexpectedly")


@app.command()
@with_options
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files.")],
    settings: BrokerSettings,
    as_json: _Json = False,
) -> None:
    """Write the files of a secured mosquitto.

    The files are a certificate authority, certificates, rights and a configuration. Each client
    gets its own certificate, and only workers know the secret name of their pool. A second call
    adds new clients and keeps the authority.

    Example:

        gatewise broker init broker --host broker.example --devices pi-1,pi-2
    """
    broker_folder = init_broker(folder, settings)
    _note_old_certificates(settings.renew)
    if as_json:
        roster = {
            name: setting
            for name, setting in asdict(broker_folder.roster).items()
            if name != "pool"
        }
        report = {
            "folder": broker_folder.folder,
            "config": broker_folder.config,
            "plugin": broker_folder.plugin,
            "revoked": broker_folder.revoked_clients,
            "made": broker_folder.issued_certificates,
        }
        print_line("", roster | report, as_json=True)
        return
    _print_folder(broker_folder)
    if broker_folder.roster.run_as is None and os.geteuid() == 0:
        note(
            "note: if root starts mosquitto, it runs as the user mosquitto, who may not read these "
            "files: give --run-as mosquitto"
        )


@app.command()
def add(
    names: _Names,
    folder: _Folder = Path("broker"),
    worker: Annotated[
        bool, typer.Option("--worker", help="Add workers instead of devices.")
    ] = False,
    labeller: Annotated[
        bool, typer.Option("--labeller", help="Add machines that send labels, not devices.")
    ] = False,
    broker: _Url = None,
    as_json: _Json = False,
) -> None:
    """Add devices to a running broker: write certificates in DIR/clients, and grant rights.

    The broker needs no restart, and no connection ends. Without mosquitto's dynamic security
    plugin, or with --free-ids, the certificate alone gives a device its rights, but a new worker
    or labeller needs a restart of the broker.

    Example:

        gatewise broker add pi-3 pi-4 --dir broker
    """
    if worker and labeller:
        raise InputError("--worker and --labeller: add them by two calls")
    role = "workers" if worker else "labellers" if labeller else "devices"
    roles: dict[str, Any] = {role: tuple(names)}
    _note_old_certificates(_select_revoked(folder, names))
    broker_folder = init_broker(folder, **roles)
    is_applied = _apply_roles_live(broker_folder, dict.fromkeys(names, role), broker)
    lines = [f"made {path} and its key" for path in broker_folder.issued_certificates]
    if not is_applied and role != "devices":
        lines.append("restart the broker, which then grants their rights")
    document = {"made": broker_folder.issued_certificates, "applied": is_applied}
    print_line("\n".join(lines), document, as_json=as_json)


@app.command()
def revoke(
    names: _Names, folder: _Folder = Path("broker"), broker: _Url = None, as_json: _Json = False
) -> None:
    """Revoke clients of a running broker.

    The broker ends their connections and takes their rights. They can connect again, without
    rights, until the broker has read ca.crl again (SIGHUP, or systemctl reload mosquitto). Without
    the plugin, or with --free-ids, it needs a restart.

    Example:

        gatewise broker revoke pi-3 --dir broker
    """
    broker_folder = init_broker(_check_folder(folder), BrokerSettings(revoke=tuple(names)))
    is_applied = _apply_roles_live(broker_folder, dict.fromkeys(names, REVOKED), broker)
    outcome_text = f"revoked {', '.join(names)}" + ("" if is_applied else ": restart the broker")
    print_line(
        outcome_text,
        {"revoked": broker_folder.revoked_clients, "applied": is_applied},
        as_json=as_json,
    )


@app.command(name="list")
def list_clients(
    folder: _Folder = Path("broker"), broker: _Url = None, as_json: _Json = False
) -> None:
    """List the clients of a broker with role, expiry of the certificate, rights and status.

    Example:

        gatewise broker list --dir broker
    """
    broker_folder = init_broker(_check_folder(folder))
    endpoint = operator_endpoint(broker_folder, broker)
    clients = broker_clients(broker_folder.roster)
    clients_with_rights = None
    if broker_folder.has_live_control:
        clients_with_rights = read_clients_with_rights(endpoint, clients)
    statuses = {topic.split("/")[2]: status for topic, status in read_statuses(endpoint).items()}
    rows: list[dict[str, Any]] = []
    for name, role in clients.items():
        certificate = Path(broker_folder.client_arguments(name)["cert_file"])
        expiry_date = None
        if certificate.exists():
            expiry_date = f"{read_certificate(certificate).not_valid_after_utc:%Y-%m-%d}"
        has_rights = None if clients_with_rights is None else name in clients_with_rights
        # the last status of a client without rights is out of date
        status = None if has_rights is False else statuses.get(name)
        row = {"name": name, "role": role, "expires": expiry_date, "rights": has_rights}
        rows.append(row | {"status": status})
    if as_json:
        emit({"clients": rows})
        return
    cells = [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
    print_table(f"Clients of {endpoint.url}", list(rows[0]), cells)


@app.command()
def token(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of devices.")],
    folder: _Folder = Path("broker"),
    as_json: _Json = False,
) -> None:
    """Make a one-time token for each device, which is valid for one day.

    Example:

        gatewise broker token pi-5 --dir broker
    """
    _note_old_certificates(_select_revoked(folder, names))
    tokens = make_tokens(folder, names)
    print_line("\n".join(tokens.values()), {"tokens": tokens}, as_json=as_json)


@app.command()
def enrol(
    folder: _Folder = Path("broker"),
    port: Port = 8884,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    broker: _Url = None,
    as_json: _Json = False,
) -> None:
    """Serve enrolments over HTTPS until SIGTERM or Ctrl-C; see gatewise edge enrol.

    Each device with a token gets a certificate for its own key, and rights in the running broker.

    Example:

        gatewise broker enrol --dir broker --port 8884
    """

    def grant_rights(broker_folder: BrokerFolder, names: Sequence[str]) -> None:
        _apply_roles_live(broker_folder, dict.fromkeys(names, "devices"), broker)
        note(f"enrolled {', '.join(names)}")

    server = EnrolmentServer(
        _check_folder(folder),
        host=host,
        port=port,
        grant_rights=grant_rights,
        clock=lambda: datetime.datetime.now(datetime.UTC),
    )
    with until_interrupted(), server:
        document = {"ready": True, "port": server.port}
        print_line(f"ready: enrolments on port {server.port}", document, as_json=as_json)
        threading.Event().wait()


def _check_folder(folder: Path) -> Path:
    """Return the folder; InputError unless ``gatewise broker init`` has made it."""
    if not (folder / "roster.json").exists():
        raise InputError(f"{folder} was not made by gatewise broker init: give its folder as --dir")
    return folder


def _select_revoked(folder: Path, names: Iterable[str]) -> list[str]:
    """Return those of `names` that a folder's roster lists as revoked."""
    revoked_clients = read_roster(_check_folder(folder)).revoked
    return [name for name in names if name in revoked_clients]


def _apply_roles_live(
    broker_folder: BrokerFolder, clients: Mapping[str, str], url: str | None
) -> bool:
    """Change roles in a running broker; return False if the broker needs a restart for it."""
    if not broker_folder.has_live_control:
        return False
    endpoint = operator_endpoint(broker_folder, url)
    try:
        apply_roles(endpoint, clients, broker_folder.roster.pool)
    except LinkError as error:
        raise LinkError(
            error.url,
            f"{error}; {broker_folder.folder} is changed, but the running broker may not be: run "
            "this command again",
        ) from error
    return True


def _note_old_certificates(names: Iterable[str]) -> None:
    """Explain until when a running broker accepts the old certificates of clients, if any."""
    if client_list := ", ".join(names):
        note(
            f"note: a running broker refuses the old certificate of {client_list} only after it "
            "has read ca.crl again: copy ca.crl to its machine, and send mosquitto SIGHUP "
            "(systemctl reload mosquitto)"
        )


def _print_folder(broker_folder: BrokerFolder) -> None:
    for path in broker_folder.issued_certificates:
        print(f"made {path} and its key")
    for name in broker_folder.revoked_clients:
        print(f"revoked {name}: restart the broker")
    roster = broker_folder.roster
    print(
        f"{plural(len(roster.devices), 'device')}, {plural(len(roster.workers), 'worker')}, "
        f"{plural(len(roster.operators), 'operator')}; start it with: mosquitto -c "
        f"{broker_folder.config}"
    )
    clients_folder = broker_folder.folder / "clients"
    print(
        f"each client needs its .crt and .key from {clients_folder} and "
        f"{broker_folder.folder / 'ca.crt'}, a worker {clients_folder / 'pool'} as well "
        "(--pool-file); keep ca.key to yourself"
    )
    if broker_folder.plugin is not None and broker_folder.issued_certificates:
        alternative = ", or use gatewise broker add" if broker_folder.has_live_control else ""
        print(f"a running broker does not read these files again: restart it{alternative}")
    if broker_folder.plugin is None:
        note(
            "note: without mosquitto's dynamic security plugin (--plugin) the broker refuses no "
            "subscription, so a client that learns the pool's name can receive its requests"
        )
