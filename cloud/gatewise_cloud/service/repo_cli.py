"""``gatewise repo``: a repository of releases, and the rollout of releases to devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.console import emit, table
from gatewise.errors import InputError

if TYPE_CHECKING:
    from gatewise_cloud.broker.rollout_reports import RolloutReport
    from gatewise_edge.link.broker_url import Endpoint
    from gatewise_export.repository.release import OfferedRelease
    from gatewise_export.repository.repository import Repository

__all__ = ["commands"]

#: Reports of a failure that are no accident.
_FEWEST_REFUSED = 3

_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Publish releases that devices update to: static files, signed, on any web server.",
)

_Folder = Annotated[Path, typer.Argument(metavar="REPO", help="The repository's folder.")]
_Keys = Annotated[Path | None, typer.Option(help="Folder of the private keys; without: REPO.keys.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
_Broker = Annotated[
    str | None, typer.Option(help="Tell devices at once, over mqtt(s)://[user:password@]host.")
]
_CaFile = Annotated[Path | None, typer.Option(help="Authorities trusted for mqtts://.")]
_CertFile = Annotated[Path | None, typer.Option(help="The operator's certificate.")]
_KeyFile = Annotated[Path | None, typer.Option(help="Its key, for TLS.")]


@_app.command()
def init(
    repo: _Folder,
    keys: _Keys = None,
    root_keys: Annotated[int, typer.Option(min=1, help="How many root keys to make.")] = 1,
    threshold: Annotated[int, typer.Option(min=1, help="How many of them must sign.")] = 1,
    as_json: _Json = False,
) -> None:
    """Make a repository and its keys.

    Keep the keys off the web server; the root keys, off line. Give each device the root metadata
    that is printed: gatewise edge --trust.

    Example:

        gatewise repo init fleet --root-keys 3 --threshold 2
    """
    from gatewise_export.repository.repository import Repository

    made = Repository.init(repo, keys, root_keys=root_keys, threshold=threshold)
    text = f"repository {repo}, keys in {made.keys}; devices trust {made.root_file}"
    _print(as_json, {"root": made.root_file, "keys": made.keys}, text)


@_app.command()
def add(
    repo: _Folder,
    bundle: Annotated[Path, typer.Argument(help="A directory or a .gwb file.")],
    keys: _Keys = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option(help="Machine it is for, as `uname -m` says; may be repeated. Else: all."),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(help="NAME.key: sign its manifest, for --public-key.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Add a bundle, without the high-cost model, as a release that is not offered yet.

    Example:

        gatewise repo add fleet digits-8.gwb --hardware aarch64
    """
    made = _open(repo, keys).add(bundle, hardware=hardware or [], sign=sign)
    size = sum(spec.size for spec in made.files.values())
    _print(as_json, {"release": str(made), "bytes": size}, f"added {made}: {size} bytes")


@_app.command()
def publish(
    repo: _Folder,
    release: Annotated[
        str | None, typer.Argument(help="MODEL/VERSION; without: sign anew what expires soon.")
    ] = None,
    keys: _Keys = None,
    rollout: Annotated[str, typer.Option(help="Share of the devices, as 10% or 0.1.")] = "100%",
    broker: _Broker = None,
    ca_file: _CaFile = None,
    cert_file: _CertFile = None,
    key_file: _KeyFile = None,
    as_json: _Json = False,
) -> None:
    """OfferedRelease a release to a share of the devices; call it again with more.

    Upload REPO after each change, metadata/timestamp.json last. Call it without a release once a
    day, so that the timestamp does not expire.

    Example:

        gatewise repo publish fleet digits/8 --rollout 10% --broker mqtts://broker.example
    """
    opened = _open(repo, keys)
    if release is None:
        opened.refresh()
        offers = opened.offers()
    else:
        offers = [opened.publish(release, _share(rollout))]
    _announce(opened, offers, broker, ca_file, cert_file, key_file)
    _print_offers(as_json, opened, offers if release else [])


@_app.command()
def rollback(
    repo: _Folder,
    model: Annotated[str | None, typer.Option(help="Where there are several.")] = None,
    above: Annotated[
        str | None,
        typer.Option(help="Only if more of the devices that ran it report that it failed, as 5%."),
    ] = None,
    keys: _Keys = None,
    broker: _Broker = None,
    ca_file: _CaFile = None,
    cert_file: _CertFile = None,
    key_file: _KeyFile = None,
    as_json: _Json = False,
) -> None:
    """Withdraw the latest release: devices go back to the one before it.

    With --above this is an abort threshold: call it every few minutes while a rollout grows. Fewer
    than 3 reports of a failure withdraw nothing.

    Example:

        gatewise repo rollback fleet --above 5% --broker mqtts://broker.example
    """
    opened = _open(repo, keys)
    if above is not None:
        if broker is None:
            raise InputError("--above needs --broker, where devices report")
        latest = opened.latest(model)
        report = _reports(opened, [latest], broker, ca_file, cert_file, key_file)[latest]
        if report.refused < _FEWEST_REFUSED or report.failed <= _share(above):
            text = f"{latest} stays: {report.running} run it, on {report.refused} it failed"
            _print(as_json, {"release": str(latest), **asdict(report)}, text)
            return
    offer = opened.rollback(model)
    _announce(opened, [offer], broker, ca_file, cert_file, key_file)
    _print_offers(as_json, opened, [offer])


@_app.command(name="rotate-key")
def rotate_key(
    repo: _Folder,
    role: Annotated[str, typer.Argument(help="root, targets, snapshot or timestamp.")],
    revoke: Annotated[
        str | None, typer.Option(help="Id of the key to revoke; without: the role's first.")
    ] = None,
    keys: _Keys = None,
    as_json: _Json = False,
) -> None:
    """Replace a key by a new one; devices learn of it by themselves.

    Example:

        gatewise repo rotate-key fleet timestamp
    """
    fresh = _open(repo, keys).rotate_key(role, revoke=revoke)
    _print(as_json, {"role": role, "key": fresh}, f"{role} is signed by key {fresh[:16]} now")


@_app.command()
def status(
    repo: _Folder,
    keys: _Keys = None,
    broker: _Broker = None,
    ca_file: _CaFile = None,
    cert_file: _CertFile = None,
    key_file: _KeyFile = None,
    as_json: _Json = False,
) -> None:
    """Show releases with their rollouts, and when the metadata of each role expire.

    With --broker also how many devices report that they run a release, or that it failed there.
    """
    opened = _open(repo, keys)
    reports: dict[OfferedRelease, RolloutReport] = {}
    if broker is not None:
        reports = _reports(opened, opened.offers(), broker, ca_file, cert_file, key_file)
    releases = [(offer, opened.release(offer)) for offer in opened.offers()]
    if as_json:
        rows = [
            {
                "release": str(offer),
                "serial": offer.serial,
                "rollout": offer.rollout / 10_000,
                "bytes": sum(spec.size for spec in release.files.values()),
                "features": release.features,
                "runtime": release.runtime,
                "hardware": release.hardware,
                **(asdict(reports[offer]) if reports else {}),
            }
            for offer, release in releases
        ]
        emit({"version": opened.version, "releases": rows, "roles": opened.roles()})
        return
    header = ("release", "serial", "rollout", "files", "bytes", "features", "runtime", "hardware")
    table(
        f"Releases in {repo}",
        (*header, "running", "failed") if reports else header,
        [
            (
                offer,
                offer.serial,
                _percent(offer),
                len(release.files),
                sum(spec.size for spec in release.files.values()),
                len(release.features),
                release.runtime,
                ", ".join(release.hardware) or "all",
                *(astuple(reports[offer]) if reports else ()),
            )
            for offer, release in releases
        ],
    )
    table(
        "Roles",
        ("role", "version", "expires", "keys"),
        [
            (r["role"], r["version"], r["expires"][:10], f"{r['threshold']} of {len(r['keys'])}")
            for r in opened.roles()
        ],
    )


commands = {"repo": _app}


def _open(repo: Path, keys: Path | None) -> Repository:
    from gatewise_export.repository.repository import Repository

    return Repository(repo, keys)


def _share(text: str) -> float:
    """Read a share: ``10%`` or ``0.1``."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f"--rollout {text}: give a share, as 10% or 0.1") from None
    return share


def _percent(offer: OfferedRelease) -> str:
    return f"{offer.rollout / 100:g}%"


def _announce(
    repository: Repository, offers: list[OfferedRelease], broker: str | None, *files: Path | None
) -> None:
    """Announce to the devices of the offers' models that there is news."""
    if broker is None:
        if any(files):
            raise InputError("--ca-file, --cert-file and --key-file are for --broker")
        return
    from gatewise_cloud.broker.mqtt_client import publish_retained
    from gatewise_edge.link.topics import manifest_topic

    endpoint = _endpoint(broker, files)
    for model in sorted({offer.model for offer in offers}):
        publish_retained(endpoint, manifest_topic(model), f"targets {repository.version}".encode())


def _reports(
    repository: Repository, offers: list[OfferedRelease], broker: str, *files: Path | None
) -> dict[OfferedRelease, RolloutReport]:
    """What devices report of each release."""
    from gatewise_cloud.broker.rollout_reports import RolloutReport, read_statuses

    statuses = read_statuses(_endpoint(broker, files))
    return {offer: RolloutReport.from_statuses(statuses, offer) for offer in offers}


def _endpoint(broker: str, files: Sequence[Path | None]) -> Endpoint:
    from gatewise_edge.link.broker_url import Endpoint

    ca_file, cert_file, key_file = files
    return Endpoint(broker, ca_file=ca_file, cert_file=cert_file, key_file=key_file)


def _print_offers(as_json: bool, repository: Repository, offers: list[OfferedRelease]) -> None:
    document: dict[str, Any] = {"version": repository.version}
    text = [f"{repository.folder} is at version {repository.version}"]
    for offer in offers:
        document |= {"release": str(offer), "serial": offer.serial, "rollout": offer.rollout / 1e4}
        text.append(f"{offer} is offered to {_percent(offer)} of the devices")
    _print(as_json, document, "; ".join(text))


def _print(as_json: bool, document: Mapping[str, Any], text: str) -> None:
    if as_json:
        emit(document)
    else:
        print(text)
