"""Add and revoke clients of a running broker through mosquitto's dynamic security plugin.

An operator publishes commands on the plugin's control topic. Only the connections of revoked
clients end. After each command the plugin writes its file, which takes 60 ms with 20,000 devices.
The broker handles no messages in that time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import paho.mqtt.client as paho

from gatewise_cloud.broker.broker_files import REVOKED, own_roles, role_name
from gatewise_cloud.broker.broker_init import BrokerFolder
from gatewise_cloud.broker.mqtt_client import broker_url, refusal_error, run_until, subscribed
from gatewise_edge.errors import LinkError
from gatewise_edge.link.endpoint import Endpoint

_COMMAND_TOPIC: Final = "$CONTROL/dynamic-security/v1"
_RESPONSE_TOPIC: Final = "$CONTROL/dynamic-security/v1/response"
#: Longest wait for a response, which includes the time in which the plugin writes its file.
_TIMEOUT_SECONDS: Final = 30.0
#: Number of commands in one message.
_BATCH_SIZE: Final = 100

_REVOKED_ROLES: Final = [{"rolename": REVOKED}]

Command = Mapping[str, Any]


def operator_endpoint(broker: BrokerFolder, url: str | None = None) -> Endpoint:
    """Make the endpoint of a folder's first operator, with `url` or else the first host."""
    roster = broker.roster
    return Endpoint(
        url or broker_url("mqtts", roster.hosts[0], roster.port),
        **broker.client_arguments(roster.operators[0]),
    )


def apply_roles(endpoint: Endpoint, clients: Mapping[str, str], pool: str) -> None:
    """Set the roles of `clients`, such as :data:`.REVOKED`, in a running broker.

    Raises LinkError if the broker cannot be reached, does not answer, or refuses a command.
    """
    # commands that create a client, and commands that change a client that exists
    create_commands: list[Command] = []
    change_commands: dict[str, list[Command]] = {}
    for name, client_role in clients.items():
        roles = [{"rolename": role_name(name, client_role)}]
        create_commands += [
            {"command": "createRole", **role_rights}
            for role_rights in own_roles(name, client_role, pool)
        ]
        create_commands.append({"command": "createClient", "username": name, "roles": roles})
        # disableClient also ends the connection
        access_command = "disableClient" if client_role == REVOKED else "enableClient"
        change_commands[name] = [
            {"command": "modifyClient", "username": name, "roles": roles},
            {"command": access_command, "username": name},
        ]
    # create the clients; those that exist already, and those to revoke, are changed afterwards
    remaining_commands: list[Command] = []
    responses = _send_commands(endpoint, create_commands)
    for command, response in zip(create_commands, responses, strict=True):
        error = response.get("error")
        is_client = command["command"] == "createClient"
        if is_client and (error or command["roles"] == _REVOKED_ROLES):
            remaining_commands += change_commands[command["username"]]
        if error not in (None, "Role already exists", "Client already exists"):
            raise LinkError(endpoint.url, f"broker {endpoint.url} refuses a change: {error}")
    for response in _send_commands(endpoint, remaining_commands):
        if (error := response.get("error")) is not None:
            raise LinkError(endpoint.url, f"broker {endpoint.url} refuses a change: {error}")


def read_clients_with_rights(endpoint: Endpoint, names: Iterable[str]) -> set[str]:
    """Read which of the clients `names` have rights in a running broker.

    Raises LinkError if the broker cannot be reached or does not answer.
    """
    commands = [{"command": "getClient", "username": name} for name in names]
    clients_with_rights = set()
    for response in _send_commands(endpoint, commands):
        # there is no data if the broker does not know the client
        client = response.get("data", {}).get("client", {"disabled": True})
        is_revoked = any(role["rolename"] == REVOKED for role in client.get("roles", ()))
        if not client.get("disabled") and not is_revoked:
            clients_with_rights.add(client["username"])
    return clients_with_rights


def _send_commands(endpoint: Endpoint, commands: Sequence[Command]) -> Iterator[Mapping[str, Any]]:
    """Send commands in batches, and yield their responses in order."""
    if not commands:
        return
    responses: list[Mapping[str, Any]] = []
    n_sent = 0

    def add_responses(message: paho.MQTTMessage) -> None:
        responses.extend(json.loads(message.payload)["responses"])

    def has_all_responses() -> bool:
        return len(responses) >= n_sent

    session = subscribed(
        endpoint, _RESPONSE_TOPIC, on_message=add_responses, timeout_seconds=_TIMEOUT_SECONDS
    )
    with session as (client, is_granted):
        if not is_granted:
            raise refusal_error(
                endpoint, "this client may not control it (does it have the plugin?)"
            )
        while n_sent < len(commands):
            batch = commands[n_sent : n_sent + _BATCH_SIZE]
            client.publish(_COMMAND_TOPIC, json.dumps({"commands": batch}), qos=1)
            n_sent += len(batch)
            if not run_until(client, has_all_responses, _TIMEOUT_SECONDS):
                raise LinkError(endpoint.url, f"broker {endpoint.url} does not answer a command")
    yield from responses
