"""``gatewise repo``: a repository of releases, and the rollout of releases to devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatewise.console import emit, table
from gatewise.errors import InputError
from gatewise_cloud.service.rollouts import (
    REPORTED_SHARES,
    abort_limits,
    announce,
    endpoint_of,
    read_share,
    report_cells,
    report_in_words,
    reports_of,
    roll_out_in_steps,
    rollout_percent,
)
from gatewise_export.commands.options import AsJson

if TYPE_CHECKING:
    from gatewise_export.repository.release import OfferedRelease
    from gatewise_export.repository.repository import Repository

_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Publish releases that devices update to: static files, signed, on any web server.

    Example:

        gatewise repo init fleet && gatewise repo add fleet digits-8.gwb

        gatewise repo publish fleet digits/8 --rollout 10% && gatewise repo status fleet --json
    """,
)

_Folder = Annotated[Path, typer.Argument(metavar="REPO", help="The repository's folder.")]
_Keys = Annotated[Path | None, typer.Option(help="Folder of the private keys; without: REPO.keys.")]
_Above = Annotated[
    str | None,
    typer.Option(help="Withdraw it if it failed on more of the devices that ran it, as 5%."),
]
_WorseBy = Annotated[
    str | None,
    typer.Option(
        help="Withdraw it if its share of errors, of fallbacks or of answers other than the "
        "high-cost model's (with --audit on devices) exceeds that of other versions by more, as 1%."
    ),
]
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
    as_json: AsJson = False,
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
    as_json: AsJson = False,
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
    rollout: Annotated[
        str,
        typer.Option(
            help="Share of the devices, as 10% or 0.1; steps with --every, as 5%,25%,100%."
        ),
    ] = "100%",
    every: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds that each step of a rollout lasts.")
    ] = None,
    above: _Above = None,
    worse_by: _WorseBy = None,
    broker: _Broker = None,
    ca_file: _CaFile = None,
    cert_file: _CertFile = None,
    key_file: _KeyFile = None,
    as_json: AsJson = False,
) -> None:
    r"""Offer a release to a share of the devices; call it again with more.

    With --every it is offered to one share after the other, each so long, and withdrawn (status 1)
    as soon as what the devices report passes a limit of --above or --worse-by. One that is
    interrupted stays at its step, and goes on when called again.

    Upload REPO after each change, metadata/timestamp.json last. Call it without a release once a
    day, so that the timestamp does not expire.

    Example:

        gatewise repo publish fleet digits/8 --rollout 10% --broker mqtts://broker.example
        gatewise repo publish fleet digits/8 --rollout 5%,25%,100% --every 3600 \
            --above 5% --worse-by 1% --broker mqtts://broker.example
    """
    opened, endpoint = _open(repo, keys), endpoint_of(broker, ca_file, cert_file, key_file)
    limits = abort_limits(above, worse_by)
    if every is not None:
        if release is None or endpoint is None:
            raise InputError("--every needs a release, and --broker, where devices report")
        end = roll_out_in_steps(opened, release, rollout, every, limits, endpoint)
        document = {
            "version": opened.version,
            "release": str(end.offer),
            "rollout": end.offer.rollout / 1e4,
            "aborted": end.aborted,
            **end.report.to_dict(),
        }
        if end.aborted is None:
            _print(as_json, document, _offered(end.offer))
            return
        _print(as_json, document, f"{end.offer} is withdrawn: {end.aborted}")
        raise typer.Exit(1)
    if above is not None or worse_by is not None:
        raise InputError("--above and --worse-by are for --every, or for gatewise repo rollback")
    if release is None:
        opened.refresh()
        offers = opened.offers()
    else:
        offers = [opened.publish(release, read_share(rollout))]
    announce(opened, offers, endpoint)
    _print_offers(as_json, opened, offers if release else [])


@_app.command()
def rollback(
    repo: _Folder,
    model: Annotated[str | None, typer.Option(help="Where there are several.")] = None,
    above: _Above = None,
    worse_by: _WorseBy = None,
    keys: _Keys = None,
    broker: _Broker = None,
    ca_file: _CaFile = None,
    cert_file: _CertFile = None,
    key_file: _KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw the latest release: devices go back to the one before it.

    With --above or --worse-by it is withdrawn only if what the devices report passes that limit.

    Example:

        gatewise repo rollback fleet --above 5% --broker mqtts://broker.example
    """
    opened, endpoint = _open(repo, keys), endpoint_of(broker, ca_file, cert_file, key_file)
    if above is not None or worse_by is not None:
        if endpoint is None:
            raise InputError("--above and --worse-by need --broker, where devices report")
        limits, latest = abort_limits(above, worse_by), opened.latest(model)
        report = reports_of([latest], endpoint)[latest]
        if limits.reason_to_abort(report) is None:
            text = f"{latest} stays: {report_in_words(report)}"
            _print(as_json, {"release": str(latest), **report.to_dict()}, text)
            return
    offer = opened.rollback(model)
    announce(opened, [offer], endpoint)
    _print_offers(as_json, opened, [offer])


@_app.command(name="rotate-key")
def rotate_key(
    repo: _Folder,
    role: Annotated[str, typer.Argument(help="root, targets, snapshot or timestamp.")],
    revoke: Annotated[
        str | None, typer.Option(help="Id of the key to revoke; without: the role's first.")
    ] = None,
    keys: _Keys = None,
    as_json: AsJson = False,
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
    as_json: AsJson = False,
) -> None:
    """Show releases with their rollouts, and when the metadata of each role expire.

    With --broker also how many devices report that they run a release, or that it failed there.
    """
    opened = _open(repo, keys)
    endpoint = broker and endpoint_of(broker, ca_file, cert_file, key_file)
    reports = reports_of(opened.offers(), endpoint) if endpoint else {}
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
                **(reports[offer].to_dict() if reports else {}),
            }
            for offer, release in releases
        ]
        emit({"version": opened.version, "releases": rows, "roles": opened.roles()})
        return
    header = ("release", "serial", "rollout", "files", "bytes", "features", "runtime", "hardware")
    table(
        f"Releases in {repo}",
        (*header, "running", "failed", *REPORTED_SHARES) if reports else header,
        [
            (
                offer,
                offer.serial,
                rollout_percent(offer),
                len(release.files),
                sum(spec.size for spec in release.files.values()),
                len(release.features),
                release.runtime,
                ", ".join(release.hardware) or "all",
                *report_cells(reports.get(offer)),
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


def _offered(offer: OfferedRelease) -> str:
    return f"{offer} is offered to {rollout_percent(offer)} of the devices"


def _print_offers(as_json: bool, repository: Repository, offers: list[OfferedRelease]) -> None:
    document: dict[str, Any] = {"version": repository.version}
    text = [f"{repository.folder} is at version {repository.version}"]
    for offer in offers:
        document |= {"release": str(offer), "serial": offer.serial, "rollout": offer.rollout / 1e4}
        text.append(_offered(offer))
    _print(as_json, document, "; ".join(text))


def _print(as_json: bool, document: Mapping[str, Any], text: str) -> None:
    if as_json:
        emit(document)
    else:
        print(text)
