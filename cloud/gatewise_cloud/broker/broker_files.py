"""The texts that mosquitto reads: its configuration, and who may do what. Pure.

What each line of the configuration is for was measured: without ``set_tcp_nodelay`` a request
takes 44 ms instead of 1; without ``autosave_interval 1`` a broker that is killed loses messages
that it had acknowledged; beyond ``max_queued_messages`` it drops without a word; one client with
many sleeping sessions fills the memory and the disk.

Rights come in two forms. mosquitto's dynamic security plugin refuses subscriptions; its access list
grants every one of them and filters what is delivered, so that a device that subscribes to the
workers' shared group takes requests away from them. There only the group's name, which is drawn at
random, keeps it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Final

from gatewise_edge.link.wire import JSON_REQUESTS, MAX_PAYLOAD, REQUESTS, shared

#: Connections at most, or four for each client on the roster: a TCP connection without a
#: certificate counts until its handshake fails.
_CONNECTIONS: Final = 1000

#: What a device writes below its own topic: requests, its presence, which process it is, counters,
#: answers that it passes on, and what `gatewise doctor` measures with.
_OWN_TOPICS: Final = ("req", "req/json", "status", "session", "metrics", "answers", "probe")

#: Parts of devices' large requests: the last level is a name that each worker process draws.
_PARTS: Final = f"{REQUESTS}/+"

#: A packet: the payload, its topic and the header.
_MAX_PACKET = MAX_PAYLOAD + 1024


def secure_config(
    folder: PurePath,
    *,
    port: int = 8883,
    data: PurePath | None = None,
    run_as: str | None = None,
    plugin: PurePath | None = None,
    bind_ids: bool = True,
    clients: int = 0,
) -> str:
    """Configuration of a mosquitto 2 for other machines: TLS, certificates, rights.

    With the file of the dynamic security plugin, `plugin`, that rules, else the access list. With
    `bind_ids` a certificate is good for one session; `clients` is the number on the roster.
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

# The largest message of Gatewise is {MAX_PAYLOAD} bytes; a larger packet ends the connection.
message_size_limit {MAX_PAYLOAD}
max_packet_size {_MAX_PACKET}

# Without it Nagle's algorithm makes a request take 44 ms instead of 1.
set_tcp_nodelay true

log_dest stderr
log_type error
log_type warning
log_type notice
connection_messages true

listener {port}
max_connections {max(_CONNECTIONS, 4 * clients)}
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
    """Rights of every client, for the dynamic security plugin. What they do not name is refused.

    They are those of :func:`access_list`, with the workers' shared group named.
    """
    roles = [_device_role(name) for name in devices]
    roles += [_worker_role(name, pool) for name in workers]
    roles += [_operator_role(name) for name in operators]
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


def _device_role(name: str) -> dict[str, Any]:
    # Its status and its requests it reads back where `gatewise doctor` checks them.
    own = [f"gw/v1/{name}/{what}" for what in _OWN_TOPICS]
    responses = [f"gw/v1/{name}/rsp", f"gw/v1/{name}/rsp/json"]
    parts = _PARTS.replace("+", name, 1)
    return _role(name, writes=[*own, parts], reads=[*own, *responses, "gw/v1/model/#"])


def _worker_role(name: str, pool: str) -> dict[str, Any]:
    # With the last two it finds out whether shared subscriptions work here.
    probes = [f"gw/v1/{name}/probe", "gw/v1/+/plain", "gw/v1/+/shared"]
    responses = ["gw/v1/+/rsp", "gw/v1/+/rsp/json"]
    role = _role(
        name,
        writes=[*responses, "gw/v1/dead/+", *probes],
        reads=[REQUESTS, JSON_REQUESTS, _PARTS, *probes],
    )
    role["acls"] += [
        _acl("subscribeLiteral", shared(pool)),
        _acl("subscribeLiteral", shared(pool, JSON_REQUESTS)),
        _acl("subscribePattern", "$share/+/gw/v1/+/shared"),
    ]
    return role


def _operator_role(name: str) -> dict[str, Any]:
    models = "gw/v1/model/#"
    return _role(name, writes=[models], reads=[models, "gw/v1/#", "$SYS/#"])


def _role(name: str, *, writes: Iterable[str], reads: Iterable[str]) -> dict[str, Any]:
    acls = [_acl("publishClientSend", topic) for topic in writes]
    for topic in reads:
        acls += [_acl("subscribePattern", topic), _acl("publishClientReceive", topic)]
    return {"rolename": name, "acls": acls}


def _acl(kind: str, topic: str) -> dict[str, Any]:
    return {"acltype": kind, "topic": topic, "priority": 0, "allow": True}


def access_list(workers: Iterable[str], operators: Iterable[str]) -> str:
    """Access list: who may read and write what. What it does not name is refused.

    Every certificate of the authority is a device's: the patterns below (``%u`` is its common
    name) let it reach its own topics and no other's. Workers and operators are named.
    """
    lines = [
        "# Written by `gatewise broker init`; made again by it.",
        "",
        "# A device asks, tells how it is and what it answers, and is answered, on its own topics.",
        *(f"pattern readwrite gw/v1/%u/{what}" for what in _OWN_TOPICS),
        "# Parts of large requests, to the worker that took one.",
        "pattern write gw/v1/%u/req/+",
        "# Never write: only workers answer.",
        "pattern read gw/v1/%u/rsp",
        "pattern read gw/v1/%u/rsp/json",
        "# Never write: only the operator announces models.",
        "pattern read gw/v1/model/#",
    ]
    for name in workers:
        lines += [
            "",
            f"user {name}",
            "topic read gw/v1/+/req",
            "topic read gw/v1/+/req/json",
            f"topic read {_PARTS}",
            "topic write gw/v1/+/rsp",
            "topic write gw/v1/+/rsp/json",
            "topic write gw/v1/dead/+",
            "# A worker finds out whether shared subscriptions work here.",
            "topic readwrite gw/v1/+/plain",
            "topic readwrite gw/v1/+/shared",
        ]
    for name in operators:
        lines += ["", f"user {name}", "topic readwrite gw/v1/model/#", "topic read gw/v1/#"]
        lines += ["topic read $SYS/#"]
    return "\n".join([*lines, ""])
