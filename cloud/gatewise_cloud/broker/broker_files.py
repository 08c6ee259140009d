"""The two texts that mosquitto reads: its configuration and its access list. Pure.

What each line of the configuration is for was measured: without ``set_tcp_nodelay`` a request
takes 44 ms instead of 1; without ``autosave_interval 1`` a broker that is killed loses messages
that it had acknowledged; beyond ``max_queued_messages`` it drops without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from gatewise_edge.link.wire import MAX_PAYLOAD

__all__ = ["access_list", "secure_config"]

#: A packet: the payload, its topic and the header.
_MAX_PACKET = MAX_PAYLOAD + 1024


def secure_config(
    folder: PurePath,
    *,
    port: int = 8883,
    data: PurePath | None = None,
    run_as: str | None = None,
) -> str:
    """Configuration of a mosquitto 2 for other machines: TLS, certificates, an access list."""
    user = f"user {run_as}\n" if run_as else ""
    return f"""\
# Written by `gatewise broker init`; made again by it, so keep your own lines in
# another file and say `include_dir`.
{user}per_listener_settings true

# Queued messages survive a broker that is killed.
persistence true
persistence_location {data or folder / "data"}/
autosave_interval 1
persistent_client_expiration 1d

# A client that does not keep up: beyond this, messages for it are dropped.
max_queued_messages 4096
max_queued_bytes 67108864
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
allow_anonymous false
cafile {folder}/ca.crt
crlfile {folder}/ca.crl
certfile {folder}/server.crt
keyfile {folder}/server.key
tls_version tlsv1.2
require_certificate true
# The certificate's common name is the user, whom the access list goes by.
use_identity_as_username true
acl_file {folder}/acl
"""


def access_list(workers: Iterable[str], operators: Iterable[str]) -> str:
    """Access list: who may read and write what. What it does not name is refused.

    Every certificate of the authority is a device's: the patterns below (``%u`` is its common
    name) let it reach its own topics and no other's. Workers and operators are named.
    """
    lines = [
        "# Written by `gatewise broker init`; made again by it.",
        "",
        "# A device asks, tells how it is, and is answered, on topics of its own.",
        "pattern readwrite gw/v1/%u/req",
        "pattern readwrite gw/v1/%u/status",
        "pattern readwrite gw/v1/%u/metrics",
        "# `gatewise doctor` measures with it; nobody else reads or writes it.",
        "pattern readwrite gw/v1/%u/probe",
        "# Never write: only workers answer.",
        "pattern read gw/v1/%u/rsp",
        "# Never write: only the operator announces models.",
        "pattern read gw/v1/model/#",
    ]
    for name in workers:
        lines += [
            "",
            f"user {name}",
            "topic read gw/v1/+/req",
            "topic write gw/v1/+/rsp",
            "topic write gw/v1/dead/+",
            "# A worker finds out whether shared subscriptions work here.",
            "topic readwrite gw/v1/+/plain",
            "topic readwrite gw/v1/+/shared",
        ]
    for name in operators:
        lines += ["", f"user {name}", "topic readwrite gw/v1/model/#", "topic read gw/v1/#"]
        lines += ["topic read $SYS/#"]
    return "\n".join([*lines, ""])
