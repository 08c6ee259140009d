"""``gatewise broker``: run a local broker, or prepare a secured one."""

from __future__ import annotations

import os
import threading
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gatewise.console import note, print_line
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_cloud.broker.broker import Broker, EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_cloud.broker.broker_init import BrokerFolder, init_broker
from gatewise_cloud.errors import BrokerError
from gatewise_cloud.signal_handling import until_interrupted

_FOR_RUN = "run: "
_FOR_INIT = "init: "


class Action(StrEnum):
    """What to do with a broker."""

    RUN = "run"
    INIT = "init"


def broker(
    action: Annotated[
        Action,
        typer.Argument(help="run one here for trying out, or init the files of a real one."),
    ] = Action.RUN,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help=_FOR_INIT + "where the files go.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="TCP port; 0: a free one. Default 1883; init: 8883."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help=_FOR_RUN + "a loopback address. " + _FOR_INIT + "name or address that clients "
            "know the broker by; may be repeated."
        ),
    ] = None,
    embedded: Annotated[
        bool | None,
        typer.Option(
            "--embedded/--mosquitto",
            help=_FOR_RUN + "which one; without a word mosquitto where it is installed.",
        ),
    ] = None,
    devices: Annotated[
        str, typer.Option(metavar="A,B", help=_FOR_INIT + "devices that get a certificate.")
    ] = "",
    workers: Annotated[
        str, typer.Option(metavar="A,B", help=_FOR_INIT + "workers; at first worker-1.")
    ] = "",
    operators: Annotated[
        str, typer.Option(metavar="A,B", help=_FOR_INIT + "operators; at first operator.")
    ] = "",
    revoke: Annotated[
        str, typer.Option(metavar="A,B", help=_FOR_INIT + "clients to refuse from now on.")
    ] = "",
    renew: Annotated[
        str, typer.Option(metavar="A,B", help=_FOR_INIT + "clients that get a new certificate.")
    ] = "",
    at: Annotated[
        str | None,
        typer.Option(help=_FOR_INIT + "where DIR will lie on the broker's machine."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help=_FOR_INIT + "where it keeps messages there; else DIR/data.")
    ] = None,
    run_as: Annotated[
        str | None, typer.Option(help=_FOR_INIT + "user that mosquitto becomes if root starts it.")
    ] = None,
    plugin: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|none",
            help=_FOR_INIT + "mosquitto_dynamic_security.so there; by default where it is found.",
        ),
    ] = None,
    bind_ids: Annotated[
        bool,
        typer.Option(
            "--bind-ids/--free-ids",
            help=_FOR_INIT + "one session for each certificate, or any number.",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
) -> None:
    """Run an MQTT broker on this machine, or prepare a secured one.

    `run` (without a word) is for trying out: everyone on this machine may enter. Prints a line
    that begins with `ready:` and says which broker it is; runs until SIGTERM or Ctrl-C. The
    embedded one does not serve shared subscriptions: run one worker on it, with
    --plain-subscription.

    `init` writes an authority, certificates for the server and every client, their rights, the
    secret name of the workers' pool and mosquitto.conf into DIR. Called again it adds what is new
    and keeps the authority.

      gatewise broker --port 1883

      gatewise broker init broker --host broker.example --devices pi-1,pi-2
    """
    if action is Action.INIT:
        if folder is None:
            raise InputError("gatewise broker init needs a folder: gatewise broker init DIR ...")
        made = init_broker(
            folder,
            hosts=host or [],
            port=port,
            at=at,
            data=data,
            run_as=run_as,
            plugin={None: "auto", "none": None}.get(plugin, plugin),
            bind_ids=bind_ids,
            devices=_split(devices),
            workers=_split(workers),
            operators=_split(operators),
            revoke=_split(revoke),
            renew=_split(renew),
        )
        _print_made(made, as_json=as_json)
        if run_as is None and os.geteuid() == 0 and not as_json:
            note(
                "note: a mosquitto that root starts becomes the user mosquitto, who may not read "
                "these files: give --run-as mosquitto"
            )
        return
    of_init = {
        "DIR": folder,
        "--devices": devices,
        "--workers": workers,
        "--operators": operators,
        "--revoke": revoke,
        "--renew": renew,
        "--at": at,
        "--data": data,
        "--run-as": run_as,
        "--plugin": plugin,
        "--free-ids": not bind_ids,
    }
    given = [name for name, value in of_init.items() if value]
    if given:
        raise InputError(f"{given[0]} is for `gatewise broker init DIR`")
    hosts = host or ["127.0.0.1"]
    if len(hosts) > 1:
        raise InputError("--host: a broker for trying out listens on one address")
    _run(1883 if port is None else port, hosts[0], embedded, as_json=as_json)


def _run(port: int, host: str, embedded: bool | None, *, as_json: bool) -> None:
    if embedded is None:
        embedded = find_mosquitto() is None
    start: type[Broker] = EmbeddedBroker if embedded else MosquittoBroker
    with until_interrupted(), start(port, host=host) as running:
        if not running.shared_subscriptions:
            note(
                "note: the embedded broker ignores shared subscriptions: "
                f"run one worker, gatewise cloud BUNDLE --broker {running.url} --plain-subscription"
            )
        document = {
            name: getattr(running, name) for name in ("kind", "url", "shared_subscriptions")
        }
        text = f"ready: {running.kind} broker on {running.url}"
        print_line(text, {"ready": True, **document}, as_json=as_json)
        while running.alive:
            threading.Event().wait(0.2)
        raise BrokerError(host, running.port, f"the {running.kind} broker ended by itself")


def _print_made(made: BrokerFolder, *, as_json: bool) -> None:
    if as_json:
        names = [f.name for f in fields(made) if f.name != "pool"]
        print_line("", {name: getattr(made, name) for name in names}, as_json=True)
        return
    for path in made.made:
        print(f"made {path} and its key")
    for name in made.revoked:
        print(f"revoked {name}: restart the broker")
    print(
        f"{plural(len(made.devices), 'device')}, {plural(len(made.workers), 'worker')}, "
        f"{plural(len(made.operators), 'operator')}; start it with: mosquitto -c {made.config}"
    )
    clients = made.folder / "clients"
    print(
        f"each client needs its .crt and .key from {clients} and {made.folder / 'ca.crt'}, "
        f"a worker {clients / 'pool'} as well (--pool-file); keep ca.key to yourself"
    )
    if made.plugin is not None and made.made:
        print("if the broker runs, restart it: it reads everyone's rights at its start")
    if made.plugin is None:
        note(
            "note: without mosquitto's dynamic security plugin (--plugin) no subscription is "
            "refused: whoever learns the pool's name may take requests away"
        )


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


commands = {"broker": broker}
