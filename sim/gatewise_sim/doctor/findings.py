"""Finding of one check of the doctor, the texts of what can be wrong, and the device's settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import Endpoint

State = Literal["ok", "problem", "note", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check."""

    check: str
    """Its subject: ``packages``, ``bundle``, ``tls``, ..."""
    state: State
    code: str
    """A short name of the problem, for machines; that of the check if there is none."""
    says: str
    """One line for people."""
    remedy: str = ""
    """What to do; empty if there is nothing."""

    def as_dict(self) -> dict[str, str]:
        """The attributes, fit for JSON."""
        return asdict(self)


def ok(check: str, says: str) -> Finding:
    """Make the finding of a check that holds."""
    return Finding(check, "ok", check, says)


def skipped(check: str, why: str) -> Finding:
    """Make the finding of a check that could not be made."""
    return Finding(check, "skipped", check, why)


def problem(case: str, /, **facts: object) -> Finding:
    """Make the finding of a check that fails, with the text of a case and the facts in it."""
    return _finding("problem", case, facts)


def note(case: str, /, **facts: object) -> Finding:
    """Make a finding that is no problem and worth knowing."""
    return _finding("note", case, facts)


def _finding(state: State, case: str, facts: dict[str, Any]) -> Finding:
    check, says, remedy = _TEXTS[case]
    code = case.split()[0].format(**facts)
    return Finding(check, state, code, says.format(**facts), remedy.format(**facts))


_ACL: Final = "the access list (gatewise broker init writes one)"
_SET_CLOCK: Final = "set the clock: timedatectl set-ntp true, or add a clock with a battery"

_TEXTS: Final = {
    "package-missing": (
        "packages",
        "not installed: {names}",
        "pip install 'gatewise[edge]' in the environment that runs this command",
    ),
    "no-onnxruntime": (
        "packages",
        "onnxruntime is not installed: stages run slower, in numpy",
        "pip install onnxruntime, where there is one for this machine",
    ),
    "self-test": (
        "bundle",
        "{error}",
        "do not run it here: copy or pack it again, and compare the versions of onnxruntime",
    ),
    "bundle-unusable": ("bundle", "{error}", "copy it again, or run gatewise verify on it"),
    "clock-behind the bundle": (
        "clock",
        "this machine says {now:%Y-%m-%d %H:%M} UTC, before the bundle was packed "
        "({made:%Y-%m-%d %H:%M} UTC)",
        _SET_CLOCK,
    ),
    # -- the installation ----------------------------------------------------------------------
    "extra-missing": (
        "extra",
        "[{extra}], {use}, lacks {names}",
        "pip install 'gatewise[{extra}]', if that is what this machine is for",
    ),
    "onnxruntime-broken": (
        "onnxruntime",
        "onnxruntime does not load: {error}",
        "install it again, or run devices with --runner numpy",
    ),
    "no-mosquitto": (
        "broker",
        "no mosquitto here; the embedded broker serves the demo alone",
        "apt install mosquitto, or use the broker that you have (--broker)",
    ),
    "clock-behind the installation": (
        "clock",
        "this machine says {now:%Y-%m-%d %H:%M} UTC, before Gatewise was installed "
        "({made:%Y-%m-%d %H:%M} UTC)",
        _SET_CLOCK,
    ),
    "folder-read-only": (
        "disk",
        "nothing can be written in {folder}",
        "go to a folder that this user may write to",
    ),
    "disk-full": (
        "disk",
        "{free} MB are free in {folder}; bundles and reports need up to {least}",
        "make room, or go to another disk",
    ),
    # -- the device's own certificate ----------------------------------------------------------
    "own-certificate-unusable": (
        "certificate",
        "{file} and its key do not load: {why}",
        "give the pair that `gatewise broker init` made for this device",
    ),
    "own-certificate-expired": (
        "certificate",
        "{file} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}; this machine says {now:%Y-%m-%d}",
        "renew it (gatewise broker init DIR --renew NAME), or set the clock",
    ),
    "own-certificate-name": (
        "certificate",
        "{file} is that of {name!r}, not of device {device!r}: the access list goes by the "
        "certificate's name",
        "give this device's own certificate, or the --device that it names",
    ),
    "own-certificate-ends": (
        "certificate",
        "{file} ends on {end:%Y-%m-%d}",
        "renew it: gatewise broker init DIR --renew {device}",
    ),
    # -- the way to the broker -----------------------------------------------------------------
    "dns": (
        "dns",
        "the name {host} is not known here ({why})",
        "correct the broker's name, or this machine's name server (/etc/resolv.conf)",
    ),
    "tcp-refused": (
        "tcp",
        "nobody listens on {host} port {port}",
        "start the broker, or correct the port (1883; with TLS 8883)",
    ),
    "tcp-unreachable": (
        "tcp",
        "{host} port {port} cannot be reached ({why})",
        "look at the network, and at firewalls on the way",
    ),
    "tls-expired": (
        "tls",
        "the broker's certificate has expired{end}",
        "renew it (gatewise broker init DIR, restart the broker); or this clock is ahead",
    ),
    "clock-behind the certificate": (
        "tls",
        "the broker's certificate is not valid yet{begin}: this machine's clock is behind",
        _SET_CLOCK,
    ),
    "tls-host": (
        "tls",
        "the broker's certificate is not for {host}{names}",
        "use a name that it lists, or add this one: gatewise broker init DIR --host NAME",
    ),
    "tls-unknown-ca": (
        "tls",
        "the authority that signed the broker's certificate is not {among}",
        "give the ca.crt of this broker: --ca-file",
    ),
    "tls-verify": ("tls", "{why}", "look at the broker's files"),
    "tls-none": (
        "tls",
        "port {port} does not speak TLS",
        "use mqtt:// there, or the port with TLS (8883)",
    ),
    "tls-handshake": (
        "tls",
        "the TLS handshake fails: {why}",
        "look at the broker's log; an MQTT port without TLS wants mqtt://",
    ),
    "tls-ends": (
        "tls",
        "the broker's certificate ends on {end:%Y-%m-%d}",
        "renew it: gatewise broker init DIR, then restart the broker",
    ),
    # -- login: the first five by the reason codes that paho gives to a CONNACK -----------------
    "protocol": (
        "login",
        "broker {url}: it does not speak MQTT 3.1.1",
        "use a broker that does: mosquitto 2",
    ),
    "client-id": ("login", "broker {url}: it refuses the client id", "give another --device"),
    "unavailable": (
        "login",
        "broker {url}: it is not available",
        "look at its log; try again later",
    ),
    "login by password": (
        "login",
        "broker {url}: user or password is wrong",
        "correct mqtt://user:password@host",
    ),
    "login": (
        "login",
        "broker {url}: this client may not enter",
        "give user and password (mqtt://user:password@host) or the expected certificate",
    ),
    "refused": ("login", "broker {url}: {why}", "look at its log"),
    "no-greeting": (
        "login",
        "no response to CONNECT within {seconds:g} s, or the connection was closed",
        "{hint}",
    ),
    "certificate-required": (
        "login",
        "the broker wants a client certificate",
        "give --cert-file and --key-file (gatewise broker init makes them)",
    ),
    "certificate-refused": (
        "login",
        "the broker refuses this client's certificate: it {why}",
        "give the pair that this broker's authority made (gatewise broker init --renew)",
    ),
    "no-connection": ("login", "no connection: {error}", "look at its log"),
    # -- a request and its response ------------------------------------------------------------
    "publish-denied": (
        "request",
        "this client may not write {topic}: its requests vanish",
        f"let it, in {_ACL}: pattern write gw/v1/%u/req; is --device the user's own name?",
    ),
    "publish-denied perhaps": (
        "request",
        "a message on {topic} is not passed on: this client may not write it (or, no less usual, "
        "not read it back)",
        f"let it, in {_ACL}: pattern readwrite gw/v1/%u/req; then look again",
    ),
    "no-worker": (
        "worker",
        "nobody reads {topic}: there is no worker on this broker",
        "start one: gatewise cloud BUNDLE --broker URL; may it read gw/v1/+/req?",
    ),
    "no-worker perhaps": (
        "worker",
        "a message on {topic} is passed on, but no response comes on {reply}: there is no worker, "
        "or this client may not read its responses",
        f"start one: gatewise cloud BUNDLE; pattern read gw/v1/%u/rsp in {_ACL}",
    ),
    "subscription-denied": (
        "worker",
        "the broker refuses the subscription to {reply}",
        f"let this client read it, in {_ACL}: pattern read gw/v1/%u/rsp",
    ),
    "subscription-denied perhaps": (
        "worker",
        "the request reaches a reader, but no response comes within {seconds:g} s: this client may "
        "not read {reply}, or the worker may not write it or hangs",
        f"let it, in {_ACL}: pattern read gw/v1/%u/rsp; workers: topic write gw/v1/+/rsp; "
        "read the worker's counters",
    ),
    "no-cloud": ("model", "the bundle has no cloud model: nothing is ever offloaded", ""),
    "no-model": (
        "model",
        "the worker that answered does not serve {model}",
        "start a worker with this very bundle, or give the device the one that is served: {detail}",
    ),
    "mixed-pool": (
        "model",
        "some workers of the pool serve {model}, others do not: each request that one of these "
        "takes costs a no-model and a retry",
        "a pool for each bundle (gatewise cloud --pool NAME), or all bundles to all its workers",
    ),
    "cloud-{error}": ("model", "the worker answers {error}: {detail}", "{hint}"),
    "model-differs": (
        "model",
        "the worker's {model} answers class {found} for a sample row, the bundle says {expected}",
        "two bundles share a name and version: pack one with a version of its own",
    ),
    # -- presence, rights, sessions, delays ----------------------------------------------------
    "status-denied": (
        "presence",
        "this client may not write {topic}: nobody sees whether the device is there",
        f"let it, in {_ACL}: pattern readwrite gw/v1/%u/status",
    ),
    "open-broker": (
        "rights",
        "any client of this broker may answer in a worker's place",
        f"only workers may write gw/v1/+/rsp: {_ACL}",
    ),
    "open-broker without TLS": (
        "rights",
        "any client of this broker may answer in a worker's place",
        "fine for trying out; else: gatewise broker init",
    ),
    "open-pool": (
        "pool",
        "the broker grants every subscription: who knows the name of the workers' pool takes "
        "requests away from them",
        "mosquitto's dynamic security plugin (gatewise broker init --plugin)",
    ),
    "free-ids": (
        "sessions",
        "a certificate is good for any number of sessions, and for other clients' ids",
        "use_username_as_clientid true, where no two workers share one (gatewise broker init)",
    ),
    "session-taken": (
        "login",
        "another client with this certificate took the connection over: the broker allows one",
        "stop the device's service while the doctor runs",
    ),
    "nodelay": (
        "delay",
        "a message that follows others comes after {last:.0f} ms, alone after {single:.1f}: the "
        "broker sends without TCP_NODELAY",
        "set_tcp_nodelay true in mosquitto.conf",
    ),
    "slow-broker": (
        "delay",
        "a message to the broker and back takes {single:.0f} ms: with a deadline of {deadline:g} "
        "ms there is no time for a retry",
        "a broker nearer or less busy, or a longer deadline (--deadline-ms)",
    ),
}
"""What can be wrong, by case: check, text, remedy. The case's first word is the finding's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """The settings of the device to examine."""

    broker: str | None
    """URL, as a device takes it; None: this machine only."""
    device: str | None = None
    """The device's id; without it the common name of `cert_file`, else ``gatewise-doctor``."""
    bundle: Path | None = None
    """Without it no model's answer is tried."""
    blocks: tuple[str, ...] = ()
    """``NAME=module:function``: functions of its blocks."""
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    """These three for TLS."""
    deadline_ms: float = 500.0
    """Of the device's answers: a broker is slow that leaves no time for a retry."""
    timeout: float = 3.0
    """Seconds to wait for whatever should come."""

    @property
    def name(self) -> str:
        """The device's id, once it is known."""
        return self.device or ""

    @property
    def endpoint(self) -> Endpoint:
        """The broker, with the files for TLS."""
        from gatewise_edge.link.mqtt import Endpoint

        return Endpoint(
            self.broker or "",
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )
