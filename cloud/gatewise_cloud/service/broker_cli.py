"""``gatewise broker``: run a local broker, or prepare a secured one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from gatewise.console import note, print_line
from gatewise.formats import plural
from gatewise.settings import with_options
from gatewise_cloud.broker.broker import Broker, EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_cloud.broker.broker_init import BrokerFolder, BrokerSettings, init_broker
from gatewise_cloud.errors import BrokerError
from gatewise_cloud.signal_handling import until_interrupted

_Json = Annotated[bool, typer.Option("--json", help="One JSON document per line.")]

_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)


@_app.callback()
def run(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0: a free one.")] = 1883,
    host: Annotated[str, typer.Option(help="Loopback address.")] = "127.0.0.1",
    embedded: Annotated[
        bool | None,
        typer.Option(
            "--embedded/--mosquitto",
            help="Which broker; by default mosquitto where it is installed.",
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Run an MQTT broker on this machine for trying out, or prepare a secured one with init.

    Everyone on this machine may enter. Prints a line that begins with `ready:` and says which
    broker it is; runs until SIGTERM or Ctrl-C. The embedded one does not serve shared
    subscriptions: run one worker on it, with --plain-subscription.

      gatewise broker --port 1883

      gatewise broker init broker --host broker.example --devices pi-1,pi-2
    """
    if context.invoked_subcommand is not None:
        return
    if embedded is None:
        embedded = find_mosquitto() is None
    start: type[Broker] = EmbeddedBroker if embedded else MosquittoBroker
    with until_interrupted(), start(port, host=host) as broker:
        if not broker.shared_subscriptions:
            note(
                "note: the embedded broker ignores shared subscriptions: "
                f"run one worker, gatewise cloud BUNDLE --broker {broker.url} --plain-subscription"
            )
        state = {name: getattr(broker, name) for name in ("kind", "url", "shared_subscriptions")}
        text = f"ready: {broker.kind} broker on {broker.url}"
        print_line(text, {"ready": True, **state}, as_json=as_json)
        while broker.alive:
            threading.Event().wait(0.2)
        raise BrokerError(host, broker.port, f"the {broker.kind} broker ended by itself")


@_app.command()
@with_options
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    settings: BrokerSettings,
    as_json: _Json = False,
) -> None:
    """Write the files of a secured mosquitto.

    They are an authority, certificates, rights and a configuration. Every client gets a
    certificate of its own, and only workers know the secret name of their pool. A second
    call adds new clients and keeps the authority.

    Example:

        gatewise broker init broker --host broker.example --devices pi-1,pi-2
    """
    broker = init_broker(folder, settings)
    if as_json:
        roster = {name: value for name, value in asdict(broker.roster).items() if name != "pool"}
        names = ("folder", "config", "plugin", "revoked")
        result = {name: getattr(broker, name) for name in names} | {"made": broker.issued}
        print_line("", roster | result, as_json=True)
        return
    _print_folder(broker)
    if settings.run_as is None and os.geteuid() == 0:
        note(
            "note: a mosquitto that root starts becomes the user mosquitto, who may not read "
            "these files: give --run-as mosquitto"
        )


def _print_folder(broker: BrokerFolder) -> None:
    for path in broker.issued:
        print(f"made {path} and its key")
    for name in broker.revoked:
        print(f"revoked {name}: restart the broker")
    roster = broker.roster
    print(
        f"{plural(len(roster.devices), 'device')}, {plural(len(roster.workers), 'worker')}, "
        f"{plural(len(roster.operators), 'operator')}; start it with: mosquitto -c {broker.config}"
    )
    clients = broker.folder / "clients"
    print(
        f"each client needs its .crt and .key from {clients} and {broker.folder / 'ca.crt'}, "
        f"a worker {clients / 'pool'} as well (--pool-file); keep ca.key to yourself"
    )
    if broker.plugin is not None and broker.issued:
        print("if the broker runs, restart it: it reads everyone's rights at its start")
    if broker.plugin is None:
        note(
            "note: without mosquitto's dynamic security plugin (--plugin) no subscription is "
            "refused: a client that learns the pool's name may take requests away"
        )


commands = {"broker": _app}
