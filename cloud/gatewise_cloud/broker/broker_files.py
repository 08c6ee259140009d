"""Files that mosquitto reads: its configuration, and the rights of clients.

Measurements are the reason for some lines of the configuration. Without ``set_tcp_nodelay`` a
request takes 44 ms instead of 1. Without ``autosave_interval 1`` a broker that is killed loses
messages that it has acknowledged. Without the limits one client with many sleeping sessions fills
memory and disk.

Two layers control access. mosquitto's access list says which topics a client may write and receive,
but it grants every subscription. A device could therefore subscribe to the shared group of the
workers and receive their requests. The dynamic security plugin refuses such subscriptions; without
the plugin, the random name of the group is the only protection. In the plugin all devices have the
same role, because the plugin writes all roles to disk at each change. If each of 20,000 devices had
its own role, the plugin would add 45 devices per minute instead of 1,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from gatewise.errors import InputError
from gatewise_edge.errors import WireError
from gatewise_edge.link.wire import (
    JSON_REQUEST_TOPICS,
    LABEL_TOPICS,
    MAX_PAYLOAD,
    REQUEST_TOPICS,
    check_device,
    shared_subscription,
)

#: Longest name of a client; a certificate's common name has at most 64 characters (RFC 5280).
_MAX_NAME_LENGTH: Final = 60
#: Smallest limit on connections. With many clients the limit is four per client, because a TCP
#: connection without a certificate counts until its handshake fails.
_MIN_CONNECTIONS: Final = 1000

#: Rights of a device by topic, which every client has; ``%u`` is the client's name.
_DEVICE_ACCESS: Final = {
    **{
        f"gw/v1/%u/{level}": "readwrite"
        for level in ("req", "req/json", "status", "session", "answers", "probe")
    },
    "gw/v1/%u/corrections": "readwrite",
    "gw/v1/%u/rsp": "read",
    "gw/v1/%u/rsp/json": "read",
    "gw/v1/model/#": "read",
}
#: Rights of a worker by topic. A worker uses the last two to test shared subscriptions.
_WORKER_ACCESS: Final = {
    REQUEST_TOPICS: "read",
    JSON_REQUEST_TOPICS: "read",
    LABEL_TOPICS: "read",
    f"{LABEL_TOPICS}/json": "read",
    "gw/v1/+/rsp": "write",
    "gw/v1/+/rsp/json": "write",
    "gw/v1/dead/+": "write",
    "gw/v1/+/plain": "readwrite",
    "gw/v1/+/shared": "readwrite",
}
#: Machines that send labels of instances.
_LABELLER_ACCESS: Final = {"gw/v1/%u/labels": "write", "gw/v1/%u/labels/json": "write"}
_OPERATOR_ACCESS: Final = {"gw/v1/model/#": "readwrite", "gw/v1/#": "read", "$SYS/#": "read"}

#: Role of clients without rights; the broker refuses their connections.
REVOKED: Final = "revoked"
#: Topics of the dynamic security plugin for commands and responses.
CONTROL_TOPICS: Final = "$CONTROL/dynamic-security/#"

#: Bytes of a packet in addition to its payload, for its topic and its header.
_PACKET_OVERHEAD: Final = 1024


def secure_config(
    folder: PurePath,
    *,
    port: int = 8883,
    data_folder: PurePath | None = None,
    run_as: str | None = None,
    plugin: PurePath | None = None,
    bind_ids: bool = True,
    n_clients: int = 0,
    max_message_bytes: int = MAX_PAYLOAD,
) -> str:
    """Write the configuration of a mosquitto 2 with TLS, client certificates and rights.

    `plugin` is the file of the dynamic security plugin, which decides before the access list does.
    With `bind_ids` a certificate allows one session. `n_clients` is the number of clients, and
    `max_message_bytes` is the largest payload in bytes.
    """
    access_lines = f"acl_file {folder}/acl"
    if plugin is not None:
        access_lines = (
            f"plugin {plugin}\nplugin_opt_config_file {folder}/rights.json\n{access_lines}"
        )
    session_lines = "# One session per certificate.\nuse_username_as_clientid true\n"
    memory_line = "memory_limit 402653184\n"
    if has_live_control(plugin, bind_ids=bind_ids):
        memory_line = ""
    user_line = f"user {run_as}\n" if run_as else ""
    return f"""\
# Written by `gatewise broker init`, which overwrites this file: put your own lines
# into another file, and name its folder with `include_dir`.
{user_line}per_listener_settings true

# Queued messages survive if the broker is killed.
persistence true
persistence_location {data_folder or folder / "data"}/
autosave_interval 1

# Limits on the state of each client. No client needs its session after it disconnects.
persistent_client_expiration 1h
{memory_line}# The broker drops messages for a slow client beyond these limits.
max_queued_messages 4096
max_queued_bytes 8388608
max_inflight_messages 256

# Largest message. The broker closes a connection that sends a larger packet.
message_size_limit {max_message_bytes}
max_packet_size {max_message_bytes + _PACKET_OVERHEAD}

# Nagle's algorithm would make a request take 44 ms instead of 1.
set_tcp_nodelay true

log_dest stderr
log_type error
log_type warning
log_type notice
connection_messages true

listener {port}
max_connections {max(_MIN_CONNECTIONS, 4 * n_clients)}
allow_anonymous false
cafile {folder}/ca.crt
crlfile {folder}/ca.crl
certfile {folder}/server.crt
keyfile {folder}/server.key
tls_version tlsv1.2
require_certificate true
# The common name of a certificate is the client's user name.
use_identity_as_username true
{session_lines if bind_ids else ""}{access_lines}
"""


def has_live_control(plugin: PurePath | None, *, bind_ids: bool) -> bool:
    """Return whether clients can be added and revoked while the broker runs.

    The plugin of mosquitto 2.0 frees memory that mosquitto has not counted. The count then wraps
    around and exceeds any `memory_limit`, and the broker ends all connections. The limit is needed
    without `bind_ids`, because a client with many sessions could otherwise fill the memory.
    """
    return plugin is not None and bind_ids


def rights_json(clients: Mapping[str, str], pool: str) -> bytes:
    """Write the roles and clients for the dynamic security plugin.

    The access list decides about the topics of each device, which these roles do not mention.
    """
    roles = [
        {
            "rolename": "devices",
            "acls": [_make_access_rule("subscribePattern", "$share/#", is_allowed=False)],
        },
        {"rolename": REVOKED, "acls": _make_deny_rules()},
    ]
    roles += [
        role for name, client_role in clients.items() for role in own_roles(name, client_role, pool)
    ]
    document = {
        "defaultACLAccess": {
            "publishClientSend": False,
            "publishClientReceive": False,
            "subscribe": False,
            "unsubscribe": True,
        },
        "clients": [
            {"username": name, "roles": [{"rolename": role_name(name, client_role)}]}
            for name, client_role in clients.items()
        ],
        "roles": roles,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def role_name(name: str, client_role: str) -> str:
    """Return the name of a client's role; only devices and revoked clients share a role."""
    return client_role if client_role in ("devices", REVOKED) else f"{client_role}/{name}"


def own_roles(name: str, client_role: str, pool: str) -> list[dict[str, Any]]:
    """List the roles that only this client has: one, or none if it is a device or revoked."""
    if client_role == "workers":
        access_by_topic: Mapping[str, str] = {"gw/v1/%u/probe": "readwrite", **_WORKER_ACCESS}
        subscriptions = [
            _make_access_rule("subscribeLiteral", shared_subscription(pool)),
            _make_access_rule("subscribeLiteral", shared_subscription(pool, JSON_REQUEST_TOPICS)),
            _make_access_rule("subscribePattern", "$share/+/gw/v1/+/shared"),
        ]
    elif client_role == "operators":
        access_by_topic = _OPERATOR_ACCESS | {CONTROL_TOPICS: "readwrite"}
        subscriptions = []
    elif client_role == "labellers":
        access_by_topic = _LABELLER_ACCESS
        subscriptions = []
    else:
        return []
    rules = []
    for pattern, access_mode in access_by_topic.items():
        topic = pattern.replace("%u", name)
        if "write" in access_mode:
            rules.append(_make_access_rule("publishClientSend", topic))
        if "read" in access_mode:
            rules += [
                _make_access_rule("subscribePattern", topic),
                _make_access_rule("publishClientReceive", topic),
            ]
    # deny the rest, because the access list gives every client the rights of a device
    rules += [*subscriptions, *_make_deny_rules()]
    return [{"rolename": role_name(name, client_role), "acls": rules}]


def _make_deny_rules() -> list[dict[str, Any]]:
    """Make rules that refuse everything that no rule of higher priority allows."""
    rules = [
        _make_access_rule(acl_type, "#", is_allowed=False)
        for acl_type in ("publishClientSend", "publishClientReceive")
    ]
    patterns = ("#", "$share/#")
    return rules + [
        _make_access_rule("subscribePattern", pattern, is_allowed=False) for pattern in patterns
    ]


def _make_access_rule(acl_type: str, topic: str, *, is_allowed: bool = True) -> dict[str, Any]:
    # mosquitto applies the rule with the highest priority
    return {
        "acltype": acl_type,
        "topic": topic,
        "priority": 1 if is_allowed else 0,
        "allow": is_allowed,
    }


def access_list(
    workers: Iterable[str], operators: Iterable[str], labellers: Iterable[str] = ()
) -> str:
    """Write mosquitto's access list, which refuses all topics that it does not name."""
    lines = [
        "# Written by `gatewise broker init`, which overwrites this file.",
        "",
        "# Devices. Only workers may write responses, and only operators may announce models.",
        *(f"pattern {access_mode} {topic}" for topic, access_mode in _DEVICE_ACCESS.items()),
    ]
    access_by_client = dict.fromkeys(workers, _WORKER_ACCESS) | dict.fromkeys(
        operators, _OPERATOR_ACCESS
    )
    access_by_client |= dict.fromkeys(labellers, _LABELLER_ACCESS)
    for name, access_by_topic in access_by_client.items():
        lines += [
            "",
            f"user {name}",
            *(
                f"topic {access_mode} {topic.replace('%u', name)}"
                for topic, access_mode in access_by_topic.items()
            ),
        ]
    return "\n".join([*lines, ""])


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Split texts at commas, and list each name once."""
    names = (name.strip() for text in texts for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def read_client_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Split texts at commas into names of clients; InputError if a name is not valid."""
    names = split_names(texts)
    for name in names:
        try:
            check_device(name)
        except WireError as error:
            raise InputError(f"client {name!r}: {error}") from None
        # a client's name is also a file name and a word of the access list
        if name.startswith((".", "$")) or "\\" in name or len(name) > _MAX_NAME_LENGTH:
            raise InputError(
                f"client {name!r}: give a name of at most {_MAX_NAME_LENGTH} characters that "
                "begins with neither '.' nor '$' and has no backslash"
            )
    return names
