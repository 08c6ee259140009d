"""Add and revoke clients of a running broker through mosquitto's dynamic security plugin.

An operator publishes commands on the plugin's control topic. Only the connections of revoked
clients end. The broker stands still while the plugin writes its file after each command: 60 ms with
20,000 devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import paho.mqtt.client as paho

from gatewise_cloud.broker.broker_files import REVOKED, own_roles, role_name
from gatewise_cloud.broker.broker_init import BrokerFolder
from gatewise_cloud.broker.mqtt_client import refused, run_until, subscribed
from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_url import Endpoint

_COMMANDS: Final = "$CONTROL/dynamic-security/v1"
_RESPONSES: Final = "$CONTROL/dynamic-security/v1/response"
_TIMEOUT: Final = 30.0
#: Number of commands in a message, and of clients in a page of a list.
_BATCH: Final = 100
_PAGE: Final = 2000

_REFUSED: Final = [{"rolename": REVOKED}]

Command = Mapping[str, Any]


def operator_endpoint(broker: BrokerFolder, url: str | None = None) -> Endpoint:
    """Make the endpoint of a folder's first operator, at `url` or else at the first host."""
    roster = broker.roster
    host = roster.hosts[0]
    address = f"[{host}]" if ":" in host else host
    return Endpoint(url or f"mqtts://{address}:{roster.port}", **broker.client(roster.operators[0]))


def apply_roles(endpoint: Endpoint, clients: Mapping[str, str], pool: str) -> None:
    """Set the roles of `clients`, such as :data:`.REVOKED`, in a running broker.

    Raises LinkError if the broker cannot be reached, does not answer, or refuses a command.
    """
    creating: list[Command] = []
    changing: dict[str, list[Command]] = {}
    for name, kind in clients.items():
        roles = [{"rolename": role_name(name, kind)}]
        creating += [{"command": "createRole", **role} for role in own_roles(name, kind, pool)]
        creating.append({"command": "createClient", "username": name, "roles": roles})
        # disableClient also ends the connection
        enabling = "disableClient" if kind == REVOKED else "enableClient"
        changing[name] = [
            {"command": "modifyClient", "username": name, "roles": roles},
            {"command": enabling, "username": name},
        ]
    known: list[Command] = []
    responses = _responses(endpoint, creating)
    for command, response in zip(creating, responses, strict=True):
        error = response.get("error")
        if command["command"] == "createClient" and (error or command["roles"] == _REFUSED):
            known += changing[command["username"]]
        if error not in (None, "Role already exists", "Client already exists"):
            raise LinkError(endpoint.url, f"broker {endpoint.url} refuses a change: {error}")
    for response in _responses(endpoint, known):
        if (error := response.get("error")) is not None:
            raise LinkError(endpoint.url, f"broker {endpoint.url} refuses a change: {error}")


def known_clients(endpoint: Endpoint) -> Iterator[str]:
    """Yield the names of all clients with rights in the broker."""
    offset = 0
    while True:
        page = {"command": "listClients", "count": _PAGE, "offset": offset}
        (response,) = _responses(endpoint, [page])
        data = response["data"]
        yield from data["clients"]
        offset += len(data["clients"])
        if not data["clients"] or offset >= data["totalCount"]:
            return


def _responses(endpoint: Endpoint, commands: list[Command]) -> Iterator[Mapping[str, Any]]:
    """Send commands in batches, and yield their responses in order."""
    if not commands:
        return
    responses: list[Mapping[str, Any]] = []

    def take(message: paho.MQTTMessage) -> None:
        responses.extend(json.loads(message.payload)["responses"])

    with subscribed(endpoint, _RESPONSES, take=take, timeout=_TIMEOUT) as (client, granted):
        if not granted:
            raise refused(endpoint, "this client may not control it (is the plugin there?)")
        for start in range(0, len(commands), _BATCH):
            batch = commands[start : start + _BATCH]
            client.publish(_COMMANDS, json.dumps({"commands": batch}), qos=1)
            expected = start + len(batch)
            if not run_until(client, partial(_has, responses, expected), _TIMEOUT):
                raise LinkError(endpoint.url, f"broker {endpoint.url} does not answer a command")
    yield from responses


def _has(responses: list[Mapping[str, Any]], n_expected: int) -> bool:
    return len(responses) >= n_expected
