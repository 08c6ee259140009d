"""``gatewise repo``: a repository of releases, and the rollout of releases to devices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewise.console import emit, note, table
from gatewise.errors import InputError
from gatewise.formats import percent
from gatewise_cloud.broker.rollout import (
    FIGURES,
    AbortLimits,
    RolloutReport,
    announce,
    read_reports,
    roll_out,
)
from gatewise_edge.link.broker_url import Endpoint
from gatewise_export.commands.options import AsJson
from gatewise_export.repository.release import WHOLE, OfferedRelease
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
    made = Repository(repo, keys).add(bundle, hardware=hardware or [], sign=sign)
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
    opened, endpoint = Repository(repo, keys), _endpoint(broker, ca_file, cert_file, key_file)
    limits = _limits(above, worse_by)
    if every is not None:
        if release is None or endpoint is None:
            raise InputError("--every needs a release, and --broker, where devices report")
        broker_of_devices = endpoint

        def report(offer: OfferedRelease) -> RolloutReport:
            return read_reports([offer], broker_of_devices)[offer]

        end = roll_out(
            opened,
            release,
            [_share(share.strip()) for share in rollout.split(",")],
            limits,
            announce=lambda offer: announce(opened, [offer], broker_of_devices),
            report=report,
            wait=lambda: time.sleep(every),
            progress=lambda offer, found: note(f"{offer} at {_percent(offer)}: {_words(found)}"),
        )
        document = {
            "version": opened.version,
            "release": str(end.offer),
            "rollout": end.offer.rollout / WHOLE,
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
        for role, expires in opened.refresh().items():
            note(
                f"gatewise: {role} expires on {expires:%Y-%m-%d}, and its keys are not in "
                f"{opened.keys}: run this where they are, or devices take no update from then on"
            )
        offers = opened.offers()
    else:
        offers = [opened.publish(release, _share(rollout))]
    if endpoint is not None:
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
    opened, endpoint = Repository(repo, keys), _endpoint(broker, ca_file, cert_file, key_file)
    if above is not None or worse_by is not None:
        if endpoint is None:
            raise InputError("--above and --worse-by need --broker, where devices report")
        limits, latest = _limits(above, worse_by), opened.latest(model)
        report = read_reports([latest], endpoint)[latest]
        if limits.reason_to_abort(report) is None:
            text = f"{latest} stays: {_words(report)}"
            _print(as_json, {"release": str(latest), **report.to_dict()}, text)
            return
    offer = opened.rollback(model)
    if endpoint is not None:
        announce(opened, [offer], endpoint)
    _print_offers(as_json, opened, [offer])
    if not as_json and not any(o.rollout for o in opened.offers() if o.model == offer.model):
        note(f"no release of {offer.model} is offered now: devices go back to their first bundle")


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
    fresh = Repository(repo, keys).rotate_key(role, revoke=revoke)
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
    opened, endpoint = Repository(repo, keys), _endpoint(broker, ca_file, cert_file, key_file)
    offers = opened.offers()
    reports = {} if endpoint is None else read_reports(offers, endpoint)
    releases = {offer: opened.release(offer) for offer in offers}
    sizes = {o: sum(f.size for f in release.files.values()) for o, release in releases.items()}
    if as_json:
        rows = [
            {
                "release": str(offer),
                "serial": offer.serial,
                "rollout": offer.rollout / WHOLE,
                "bytes": sizes[offer],
                "features": release.features,
                "runtime": release.runtime,
                "hardware": release.hardware,
                **(reports[offer].to_dict() if reports else {}),
            }
            for offer, release in releases.items()
        ]
        emit({"version": opened.version, "releases": rows, "roles": opened.roles()})
        return
    header = ["release", "serial", "rollout", "files", "bytes", "features", "runtime", "hardware"]
    cells = [
        [
            offer,
            offer.serial,
            _percent(offer),
            len(release.files),
            sizes[offer],
            len(release.features),
            release.runtime,
            ", ".join(release.hardware) or "all",
        ]
        for offer, release in releases.items()
    ]
    if reports:
        header += ["running", "failed", *FIGURES]
        for row, report in zip(cells, reports.values(), strict=True):
            row += [report.running, report.refused, *_shares(report)]
    table(f"Releases in {repo}", header, cells)
    table(
        "Roles",
        ("role", "version", "expires", "keys"),
        [
            (r["role"], r["version"], r["expires"][:10], f"{r['threshold']} of {len(r['keys'])}")
            for r in opened.roles()
        ],
    )


commands = {"repo": _app}


def _endpoint(
    broker: str | None, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> Endpoint | None:
    if broker is not None:
        return Endpoint(broker, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    if ca_file or cert_file or key_file:
        raise InputError("--ca-file, --cert-file and --key-file are for --broker")
    return None


def _limits(above: str | None, worse_by: str | None) -> AbortLimits:
    return AbortLimits(*(None if text is None else _share(text) for text in (above, worse_by)))


def _share(text: str) -> float:
    """Read a share: ``10%`` or ``0.1``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f"{text!r} is no share: give one as 10% or 0.1") from None


def _percent(offer: OfferedRelease) -> str:
    return f"{offer.rollout / 100:g}%"


def _shares(report: RolloutReport) -> list[str]:
    return [percent(report.share(what)[0]) for what in FIGURES]


def _words(report: RolloutReport) -> str:
    shares = ", ".join(map(" ".join, zip(FIGURES, _shares(report), strict=True)))
    return f"{report.running} run it, on {report.refused} it failed; {shares}"


def _offered(offer: OfferedRelease) -> str:
    return f"{offer} is offered to {_percent(offer)} of the devices"


def _print_offers(as_json: bool, repository: Repository, offers: Iterable[OfferedRelease]) -> None:
    document: dict[str, Any] = {"version": repository.version}
    text = [f"{repository.folder} is at version {repository.version}"]
    for offer in offers:
        shown = {"release": str(offer), "serial": offer.serial, "rollout": offer.rollout / WHOLE}
        document |= shown
        text.append(_offered(offer))
    _print(as_json, document, "; ".join(text))


def _print(as_json: bool, document: Mapping[str, Any], text: str) -> None:
    if as_json:
        emit(document)
    else:
        print(text)
