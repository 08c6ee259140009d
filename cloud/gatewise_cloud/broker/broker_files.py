"""Texts that mosquitto reads: its configuration, and the rights of clients.

Some lines of the configuration follow from measurements. Without ``set_tcp_nodelay`` a request
takes 44 ms instead of 1. Without ``autosave_interval 1`` a killed broker loses messages that it has
acknowledged. Without the limits one client with many sleeping sessions fills memory and disk.

Two layers decide on rights. mosquitto's access list says which topics a client may write and
receive, but grants every subscription, so that a device could subscribe to the shared group of the
workers and take requests from them. The dynamic security plugin refuses such subscriptions. All
devices have one role in it, because the plugin writes all roles to disk at each change: with a role
for each of 20,000 devices it adds 45 devices per minute instead of 1,000. Without the plugin the
random name of the group is the only protection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from gatewise_edge.link.wire import JSON_REQUESTS, MAX_PAYLOAD, REQUESTS, shared

#: Smallest limit of connections; on a long roster it is four per client, because a TCP connection
#: without a certificate counts until its handshake fails.
_MIN_CONNECTIONS: Final = 1000

#: Rights by topic; ``%u`` is the client's name. Every client has these rights of a device.
_DEVICE: Final = {
    **{
        f"gw/v1/%u/{level}": "readwrite"
        for level in ("req", "req/json", "status", "session", "metrics", "answers", "probe")
    },
    "gw/v1/%u/corrections": "readwrite",
    "gw/v1/%u/rsp": "read",
    "gw/v1/%u/rsp/json": "read",
    "gw/v1/model/#": "read",
}
#: With the last two a worker tests shared subscriptions.
_WORKER: Final = {
    REQUESTS: "read",
    JSON_REQUESTS: "read",
    "gw/v1/+/rsp": "write",
    "gw/v1/+/rsp/json": "write",
    "gw/v1/dead/+": "write",
    "gw/v1/+/plain": "readwrite",
    "gw/v1/+/shared": "readwrite",
}
_OPERATOR: Final = {"gw/v1/model/#": "readwrite", "gw/v1/#": "read", "$SYS/#": "read"}

#: Role of clients that are refused.
REVOKED: Final = "revoked"
#: Topics on which the dynamic security plugin takes commands and responds.
CONTROL: Final = "$CONTROL/dynamic-security/#"

#: Bytes of a packet in addition to its payload: its topic and the header.
_PACKET_HEAD: Final = 1024


def secure_config(
    folder: PurePath,
    *,
    port: int = 8883,
    data: PurePath | None = None,
    run_as: str | None = None,
    plugin: PurePath | None = None,
    bind_ids: bool = True,
    clients: int = 0,
    max_message: int = MAX_PAYLOAD,
) -> str:
    """Configuration of a mosquitto 2 with TLS, client certificates and rights.

    `plugin` is the file of the dynamic security plugin, which decides before the access list. With
    `bind_ids` a certificate allows one session. `clients` is the number of clients, `max_message`
    the largest payload in bytes.
    """
    security = f"acl_file {folder}/acl"
    if plugin is not None:
        security = f"plugin {plugin}\nplugin_opt_config_file {folder}/rights.json\n{security}"
    bound = "# One session per certificate, under its name.\nuse_username_as_clientid true\n"
    memory = "memory_limit 402653184\n"
    if has_live_control(plugin, bind_ids=bind_ids):
        memory = ""
    user = f"user {run_as}\n" if run_as else ""
    return f"""\
# Written by `gatewise broker init`, which overwrites it: put your own lines into
# another file, and name its folder with `include_dir`.
{user}per_listener_settings true

# Queued messages survive a broker that is killed.
persistence true
persistence_location {data or folder / "data"}/
autosave_interval 1

# Limits of what clients make it keep. No client needs a session after its connection.
persistent_client_expiration 1h
{memory}# Beyond these, messages for a slow client are dropped.
max_queued_messages 4096
max_queued_bytes 8388608
max_inflight_messages 256

# The largest message; a larger packet ends the connection.
message_size_limit {max_message}
max_packet_size {max_message + _PACKET_HEAD}

# Without it Nagle's algorithm makes a request take 44 ms instead of 1.
set_tcp_nodelay true

log_dest stderr
log_type error
log_type warning
log_type notice
connection_messages true

listener {port}
max_connections {max(_MIN_CONNECTIONS, 4 * clients)}
allow_anonymous false
cafile {folder}/ca.crt
crlfile {folder}/ca.crl
certfile {folder}/server.crt
keyfile {folder}/server.key
tls_version tlsv1.2
require_certificate true
# The common name of the certificate is the user name in the rights.
use_identity_as_username true
{bound if bind_ids else ""}{security}
"""


def has_live_control(plugin: PurePath | None, *, bind_ids: bool) -> bool:
    """Whether clients may be added and revoked while the broker runs.

    The plugin of mosquitto 2.0 frees memory that it has not counted. The count then wraps and
    exceeds any `memory_limit`, and the broker ends all connections. Without `bind_ids` that limit
    is needed, because it alone keeps a client with many sessions from filling the broker.
    """
    return plugin is not None and bind_ids


def rights(clients: Mapping[str, str], pool: str) -> bytes:
    """Rights of every client by its role, for the dynamic security plugin.

    The access list decides what these do not: the own topics of devices.
    """
    roles = [
        {"rolename": "devices", "acls": [_acl("subscribePattern", "$share/#", allow=False)]},
        {"rolename": REVOKED, "acls": _denials()},
    ]
    roles += [role for name, kind in clients.items() for role in own_roles(name, kind, pool)]
    document = {
        "defaultACLAccess": {
            "publishClientSend": False,
            "publishClientReceive": False,
            "subscribe": False,
            "unsubscribe": True,
        },
        "clients": [
            {"username": name, "roles": [{"rolename": role_name(name, kind)}]}
            for name, kind in clients.items()
        ],
        "roles": roles,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def role_name(name: str, kind: str) -> str:
    """Name of a client's role: its own if it is a worker or an operator."""
    return kind if kind in ("devices", REVOKED) else f"{kind}/{name}"


def own_roles(name: str, kind: str, pool: str) -> list[dict[str, Any]]:
    """The role of a worker or an operator by its name; none of other clients."""
    if kind == "workers":
        access: Mapping[str, str] = {"gw/v1/%u/probe": "readwrite", **_WORKER}
        subscriptions = [
            _acl("subscribeLiteral", shared(pool)),
            _acl("subscribeLiteral", shared(pool, JSON_REQUESTS)),
            _acl("subscribePattern", "$share/+/gw/v1/+/shared"),
        ]
    elif kind == "operators":
        access = _OPERATOR | {CONTROL: "readwrite"}
        subscriptions = []
    else:
        return []
    acls = []
    for pattern, right in access.items():
        topic = pattern.replace("%u", name)
        if "write" in right:
            acls.append(_acl("publishClientSend", topic))
        if "read" in right:
            acls += [_acl("subscribePattern", topic), _acl("publishClientReceive", topic)]
    # Deny the rest, or the access list would give it the rights of a device of its name.
    acls += [*subscriptions, *_denials()]
    return [{"rolename": role_name(name, kind), "acls": acls}]


def _denials() -> list[dict[str, Any]]:
    """Rules that refuse what no rule of a higher priority allows."""
    acls = [_acl(kind, "#", allow=False) for kind in ("publishClientSend", "publishClientReceive")]
    patterns = ("#", "$share/#")
    return acls + [_acl("subscribePattern", pattern, allow=False) for pattern in patterns]


def _acl(kind: str, topic: str, *, allow: bool = True) -> dict[str, Any]:
    # mosquitto applies the rule with the highest priority
    return {"acltype": kind, "topic": topic, "priority": 1 if allow else 0, "allow": allow}


def access_list(workers: Iterable[str], operators: Iterable[str]) -> str:
    """Access list of mosquitto; it refuses topics that the list does not name."""
    lines = [
        "# Written by `gatewise broker init`, which overwrites it.",
        "",
        "# Devices: only workers write responses, only the operator announces models.",
        *(f"pattern {right} {topic}" for topic, right in _DEVICE.items()),
    ]
    named = [*((name, _WORKER) for name in workers), *((name, _OPERATOR) for name in operators)]
    for name, access in named:
        lines += [
            "",
            f"user {name}",
            *(f"topic {right} {topic}" for topic, right in access.items()),
        ]
    return "\n".join([*lines, ""])
