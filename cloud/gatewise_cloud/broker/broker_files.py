"""Files that mosquitto reads: its configuration, and the rights of clients.

Measurements led to some lines of the configuration. Without ``set_tcp_nodelay`` a request takes
44 ms instead of 1. Without ``autosave_interval 1`` a broker that is killed loses messages that it
has acknowledged. Without the limits one client with many sleeping sessions fills memory and disk.

Two layers control access. mosquitto's access list says which topics a client may write and receive,
but it grants every subscription. A device could therefore subscribe to the shared group of the
workers and receive their requests. The dynamic security plugin refuses such subscriptions. In the
plugin all devices have the same role, because it writes all roles to disk at each change. With a
role for each of 20,000 devices it adds 45 devices per minute instead of 1,000. Without the plugin,
the random name of the group is the only protection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from gatewise_edge.link.wire import JSON_REQUESTS, LABELS, MAX_PAYLOAD, REQUESTS, shared

#: Smallest limit on connections. With many clients the limit is four per client, because a TCP
#: connection without a certificate counts until its handshake fails.
_MIN_CONNECTIONS: Final = 1000

#: Rights of a device by topic, which every client has; ``%u`` is the client's name.
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
#: Rights of a worker by topic. A worker uses the last two to test shared subscriptions.
_WORKER: Final = {
    REQUESTS: "read",
    JSON_REQUESTS: "read",
    LABELS: "read",
    f"{LABELS}/json": "read",
    "gw/v1/+/rsp": "write",
    "gw/v1/+/rsp/json": "write",
    "gw/v1/dead/+": "write",
    "gw/v1/+/plain": "readwrite",
    "gw/v1/+/shared": "readwrite",
}
#: Machines that send labels of instances.
_LABELLER: Final = {"gw/v1/%u/labels": "write", "gw/v1/%u/labels/json": "write"}
_OPERATOR: Final = {"gw/v1/model/#": "readwrite", "gw/v1/#": "read", "$SYS/#": "read"}

#: Role of clients whose connections the broker refuses.
REVOKED: Final = "revoked"
#: Topics of the dynamic security plugin for commands and responses.
CONTROL: Final = "$CONTROL/dynamic-security/#"

#: Bytes of a packet in addition to its payload, for its topic and its header.
_PACKET_OVERHEAD: Final = 1024


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
    """Write the configuration of a mosquitto 2 with TLS, client certificates and rights.

    `plugin` is the file of the dynamic security plugin, which decides before the access list does.
    With `bind_ids` a certificate allows one session. `clients` is the number of clients, and
    `max_message` is the largest payload in bytes.
    """
    security = f"acl_file {folder}/acl"
    if plugin is not None:
        security = f"plugin {plugin}\nplugin_opt_config_file {folder}/rights.json\n{security}"
    one_session = "# One session per certificate.\nuse_username_as_clientid true\n"
    memory_limit = "memory_limit 402653184\n"
    if has_live_control(plugin, bind_ids=bind_ids):
        memory_limit = ""
    user = f"user {run_as}\n" if run_as else ""
    return f"""\
# Written by `gatewise broker init`, which overwrites this file: put your own lines
# into another file, and name its folder with `include_dir`.
{user}per_listener_settings true

# Queued messages survive if the broker is killed.
persistence true
persistence_location {data or folder / "data"}/
autosave_interval 1

# Limits on the state of each client. No client needs its session after it disconnects.
persistent_client_expiration 1h
{memory_limit}# The broker drops messages for a slow client beyond these limits.
max_queued_messages 4096
max_queued_bytes 8388608
max_inflight_messages 256

# Largest message. The broker closes a connection that sends a larger packet.
message_size_limit {max_message}
max_packet_size {max_message + _PACKET_OVERHEAD}

# Nagle's algorithm would make a request take 44 ms instead of 1.
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
# The common name of a certificate is the client's user name.
use_identity_as_username true
{one_session if bind_ids else ""}{security}
"""


def has_live_control(plugin: PurePath | None, *, bind_ids: bool) -> bool:
    """Whether clients can be added and revoked while the broker runs.

    The plugin of mosquitto 2.0 frees memory that mosquitto has not counted. The count then wraps
    around and exceeds any `memory_limit`, and the broker ends all connections. The limit is needed
    without `bind_ids`, because a client with many sessions could otherwise fill the memory.
    """
    return plugin is not None and bind_ids


def rights(clients: Mapping[str, str], pool: str) -> bytes:
    """Write the roles and clients for the dynamic security plugin.

    The access list decides about the topics of each device, which these roles do not mention.
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
    """Return the name of a client's role; only devices and revoked clients share a role."""
    return kind if kind in ("devices", REVOKED) else f"{kind}/{name}"


def own_roles(name: str, kind: str, pool: str) -> list[dict[str, Any]]:
    """Make the role of one worker, operator or labeller; an empty list for other clients."""
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
    elif kind == "labellers":
        access = _LABELLER
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
    # deny the rest, because the access list gives every client the rights of a device
    acls += [*subscriptions, *_denials()]
    return [{"rolename": role_name(name, kind), "acls": acls}]


def _denials() -> list[dict[str, Any]]:
    """Make rules that refuse everything that no rule of higher priority allows."""
    acls = [_acl(kind, "#", allow=False) for kind in ("publishClientSend", "publishClientReceive")]
    patterns = ("#", "$share/#")
    return acls + [_acl("subscribePattern", pattern, allow=False) for pattern in patterns]


def _acl(kind: str, topic: str, *, allow: bool = True) -> dict[str, Any]:
    # mosquitto applies the rule with the highest priority
    return {"acltype": kind, "topic": topic, "priority": 1 if allow else 0, "allow": allow}


def access_list(
    workers: Iterable[str], operators: Iterable[str], labellers: Iterable[str] = ()
) -> str:
    """Write mosquitto's access list, which refuses all topics that it does not name."""
    lines = [
        "# Written by `gatewise broker init`, which overwrites this file.",
        "",
        "# Devices. Only workers may write responses, and only operators may announce models.",
        *(f"pattern {right} {topic}" for topic, right in _DEVICE.items()),
    ]
    access_of = dict.fromkeys(workers, _WORKER) | dict.fromkeys(operators, _OPERATOR)
    access_of |= dict.fromkeys(labellers, _LABELLER)
    for name, access in access_of.items():
        lines += [
            "",
            f"user {name}",
            *(f"topic {right} {topic.replace('%u', name)}" for topic, right in access.items()),
        ]
    return "\n".join([*lines, ""])
