"""Texts that mosquitto reads: its configuration, and the rights of clients. Pure.

The lines of the configuration follow from measurements: without ``set_tcp_nodelay`` a request
takes 44 ms instead of 1; without ``autosave_interval 1`` a broker that is killed loses messages
that it had acknowledged; beyond ``max_queued_messages`` it drops silently; one client with many
sleeping sessions fills the memory and the disk.

Rights come in two forms. mosquitto's dynamic security plugin refuses subscriptions; its access list
grants every one of them and filters deliveries, so that a device that subscribes to the workers'
shared group takes requests away from them. With the access list only the random name of the group
keeps devices out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from gatewise_edge.link.wire import JSON_REQUESTS, MAX_PAYLOAD, REQUESTS, shared

#: Smallest limit of connections; it is four per client on a longer roster, because a TCP
#: connection without a certificate counts until its handshake fails.
_MIN_CONNECTIONS: Final = 1000

#: Rights by topic; ``%u`` is a client's own name. Every certificate of the authority has the rights
#: of a device: its own topics (requests, presence, process, counters, answers, and the probe of
#: `gatewise doctor`), and no other device's.
_DEVICE: Final = {
    **{
        f"gw/v1/%u/{level}": "readwrite"
        for level in ("req", "req/json", "status", "session", "metrics", "answers", "probe")
    },
    "gw/v1/%u/rsp": "read",
    "gw/v1/%u/rsp/json": "read",
    "gw/v1/model/#": "read",
}
#: With the last two a worker finds out whether shared subscriptions work here.
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
    """Configuration of a mosquitto 2 for other machines: TLS, certificates, rights.

    The dynamic security plugin in the file `plugin` decides on rights, or else the access list.
    With `bind_ids` a certificate is good for one session; `clients` is the length of the roster,
    and `max_message` the largest payload in bytes.
    """
    security = f"acl_file {folder}/acl"
    if plugin is not None:
        security = f"plugin {plugin}\nplugin_opt_config_file {folder}/rights.json"
    bound = "# One session for each certificate, under its name.\nuse_username_as_clientid true\n"
    user = f"user {run_as}\n" if run_as else ""
    return f"""\
# Written by `gatewise broker init`; made again by it, so keep your own lines in
# another file and say `include_dir`.
{user}per_listener_settings true

# Queued messages survive a broker that is killed.
persistence true
persistence_location {data or folder / "data"}/
autosave_interval 1

# What clients may make it keep. Sessions that outlive their connection: nobody here needs one.
persistent_client_expiration 1h
memory_limit 402653184
# A client that does not keep up: beyond this, messages for it are dropped.
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
# The certificate's common name is the user, whom the rights go by.
use_identity_as_username true
{bound if bind_ids else ""}{security}
"""


def rights(
    devices: Iterable[str], workers: Iterable[str], operators: Iterable[str], *, pool: str
) -> str:
    """Rights of every client, for the dynamic security plugin; it refuses all others.

    They equal the rights of :func:`access_list`, but name the workers' shared group.
    """
    subscriptions = [
        _acl("subscribeLiteral", shared(pool)),
        _acl("subscribeLiteral", shared(pool, JSON_REQUESTS)),
        _acl("subscribePattern", "$share/+/gw/v1/+/shared"),
    ]
    worker = {"gw/v1/%u/probe": "readwrite", **_WORKER}
    roles = [_role(name, _DEVICE) for name in devices]
    roles += [_role(name, worker, subscriptions) for name in workers]
    roles += [_role(name, _OPERATOR) for name in operators]
    document = {
        "defaultACLAccess": {
            "publishClientSend": False,
            "publishClientReceive": False,
            "subscribe": False,
            "unsubscribe": True,
        },
        "clients": [
            {"username": role["rolename"], "roles": [{"rolename": role["rolename"]}]}
            for role in roles
        ],
        "roles": roles,
    }
    return json.dumps(document, indent=1) + "\n"


def _role(
    name: str, access: Mapping[str, str], more: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    acls = []
    for pattern, right in access.items():
        topic = pattern.replace("%u", name)
        if "write" in right:
            acls.append(_acl("publishClientSend", topic))
        if "read" in right:
            acls += [_acl("subscribePattern", topic), _acl("publishClientReceive", topic)]
    return {"rolename": name, "acls": [*acls, *more]}


def _acl(kind: str, topic: str) -> dict[str, Any]:
    return {"acltype": kind, "topic": topic, "priority": 0, "allow": True}


def access_list(workers: Iterable[str], operators: Iterable[str]) -> str:
    """Access list of mosquitto; it refuses topics that the list does not name."""
    lines = [
        "# Written by `gatewise broker init`; made again by it.",
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
