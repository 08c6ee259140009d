"""``gatewise repo``: a repository of releases, and the rollout of releases to devices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gatewise.console import emit, note, table
from gatewise.errors import InputError
from gatewise.formats import percent
from gatewise.settings import Settings, with_options
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

#: Status of a watched rollout, by how it ended.
STATUSES: Final = {"done": 0, "withdrawn": 1, "no-evidence": 3, "superseded": 4}

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
_Version = Annotated[
    int | None,
    typer.Option(help="Version of the repository that this is decided on; refused at another."),
]


class BrokerAccess(Settings, frozen=True):
    """The broker that devices report to, and the operator's certificate."""

    broker: Annotated[
        str | None, typer.Option(help="Tell devices at once, over mqtt(s)://[user:password@]host.")
    ] = None
    ca_file: Annotated[Path | None, typer.Option(help="Authorities trusted for mqtts://.")] = None
    cert_file: Annotated[Path | None, typer.Option(help="The operator's certificate.")] = None
    key_file: Annotated[Path | None, typer.Option(help="Its key, for TLS.")] = None

    def endpoint(self, needed_by: str | None = None) -> Endpoint | None:
        """Make the endpoint; None without a broker, unless `needed_by` names who needs one."""
        if self.broker is not None:
            return Endpoint(
                self.broker,
                ca_file=self.ca_file,
                cert_file=self.cert_file,
                key_file=self.key_file,
            )
        if needed_by is not None:
            raise InputError(f"{needed_by} need --broker, where devices report")
        if self.ca_file or self.cert_file or self.key_file:
            raise InputError("--ca-file, --cert-file and --key-file are for --broker")
        return None


class Limits(Settings, frozen=True):
    """Limits beyond which a release is withdrawn."""

    above: Annotated[
        str | None,
        typer.Option(help="Withdraw it if it failed on more of the devices that ran it, as 5%."),
    ] = None
    worse_by: Annotated[
        str | None,
        typer.Option(
            help="Withdraw it if its share of errors, of fallbacks or of answers other than the "
            "high-cost model's (with --audit on devices) exceeds that of other versions by more, "
            "as 1%."
        ),
    ] = None

    def __bool__(self) -> bool:
        return self.above is not None or self.worse_by is not None

    def read(self) -> AbortLimits:
        """Read the shares."""
        shares = (None if text is None else _share(text) for text in (self.above, self.worse_by))
        return AbortLimits(*shares)


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
@with_options
def publish(
    repo: _Folder,
    access: BrokerAccess,
    limits: Limits,
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
        float | None, typer.Option(min=0.1, help="Time between two looks at a step, in s.")
    ] = None,
    at_version: _Version = None,
    as_json: AsJson = False,
) -> None:
    r"""Offer a release to a share of the devices; call it again with more.

    With --every it is offered to one share after the other. A step ends when enough of the devices
    that it is offered to were seen running it, ten looks at most. The release is withdrawn as soon
    as the devices' reports pass a limit of --above or --worse-by (status 1), or if the ten looks
    gave no evidence for it (status 3); status 4 says that another release was published meanwhile.
    A rollout that is interrupted stays at its step, and goes on when called again.

    Upload REPO after each change, metadata/timestamp.json last. Call it without a release once a
    day, so that the timestamp does not expire.

    Example:

        gatewise repo publish fleet digits/8 --rollout 10% --broker mqtts://broker.example
        gatewise repo publish fleet digits/8 --rollout 5%,25%,100% --every 3600 \
            --above 5% --worse-by 1% --broker mqtts://broker.example
    """
    opened = Repository(repo, keys)
    if every is not None:
        if release is None:
            raise InputError("--every needs a release")
        shares = [_share(share.strip()) for share in rollout.split(",")]
        _watch(opened, release, shares, limits.read(), every, access, as_json=as_json)
        return
    if limits:
        raise InputError("--above and --worse-by are for --every, or for gatewise repo rollback")
    endpoint = access.endpoint()
    if release is None:
        for role, expires in opened.refresh().items():
            note(
                f"gatewise: {role} expires on {expires:%Y-%m-%d}, and its keys are not in "
                f"{opened.keys}: run this where they are, or devices take no update from then on"
            )
        offers = opened.offers()
    else:
        offers = [opened.publish(release, _share(rollout), expected_version=at_version)]
    if endpoint is not None:
        announce(opened, offers, endpoint)
    _print_offers(as_json, opened, offers if release else [])


def _watch(
    repository: Repository,
    release: str,
    shares: list[float],
    limits: AbortLimits,
    every: float,
    access: BrokerAccess,
    *,
    as_json: bool,
) -> None:
    """Roll a release out in steps, and exit with the status of its end."""
    endpoint = access.endpoint(needed_by="--every")
    assert endpoint is not None
    wanted = repository.find(release)
    end = roll_out(
        repository,
        release,
        shares,
        limits,
        announce=lambda offer: announce(repository, [offer], endpoint),
        report=lambda offer: read_reports([offer], endpoint)[offer],
        wait=lambda: time.sleep(every),
        progress=lambda offer, report: note(f"{offer} at {_percent(offer)}: {_words(report)}"),
        before=read_reports([wanted], endpoint)[wanted],
    )
    document = {
        "version": repository.version,
        "release": str(end.offer),
        "rollout": end.offer.rollout / WHOLE,
        "end": end.kind,
        "aborted": end.aborted,
        **end.report.to_dict(),
    }
    text = _offered(end.offer)
    if end.aborted is not None:
        what = "is superseded" if end.kind == "superseded" else "is withdrawn"
        text = f"{end.offer} {what}: {end.aborted}"
    _print(as_json, document, text)
    if end.kind != "done":
        raise typer.Exit(STATUSES[end.kind])


@_app.command()
@with_options
def rollback(
    repo: _Folder,
    release: Annotated[str, typer.Argument(help="MODEL/VERSION to withdraw.")],
    access: BrokerAccess,
    limits: Limits,
    keys: _Keys = None,
    at_version: _Version = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw a release: devices go back to the one before it.

    One that is withdrawn already stays so, and nothing else changes. With --above or --worse-by
    it is withdrawn only if the devices' reports pass that limit.

    Example:

        gatewise repo rollback fleet digits/8 --above 5% --broker mqtts://broker.example
    """
    opened = Repository(repo, keys)
    endpoint = access.endpoint(needed_by="--above and --worse-by" if limits else None)
    if limits and endpoint is not None:
        offer = opened.find(release)
        report = read_reports([offer], endpoint)[offer]
        if limits.read().reason_to_abort(report) is None:
            text = f"{offer} stays: {_words(report)}"
            _print(as_json, {"release": str(offer), **report.to_dict()}, text)
            return
    offer = opened.rollback(release, expected_version=at_version)
    if endpoint is not None:
        announce(opened, [offer], endpoint)
    _print_offers(as_json, opened, [offer])
    if not as_json and opened.wanted(offer.model) is None:
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
    """Replace a key by a new one; devices learn of it automatically.

    Example:

        gatewise repo rotate-key fleet timestamp
    """
    fresh = Repository(repo, keys).rotate_key(role, revoke=revoke)
    _print(as_json, {"role": role, "key": fresh}, f"{role} is signed by key {fresh[:16]} now")


@_app.command()
@with_options
def status(
    repo: _Folder, access: BrokerAccess, keys: _Keys = None, as_json: AsJson = False
) -> None:
    """Show releases with their rollouts, and when the metadata of each role expire.

    With --broker also show how many devices run a release, and on how many it failed.
    """
    opened = Repository(repo, keys)
    endpoint = access.endpoint()
    offers = opened.offers()
    reports = {} if endpoint is None else read_reports(offers, endpoint)
    rows = []
    for offer in offers:
        release = opened.release(offer)
        row = {
            "release": str(offer),
            "serial": offer.serial,
            "rollout": offer.rollout / WHOLE,
            "bytes": sum(file.size for file in release.files.values()),
            "features": release.features,
            "runtime": release.runtime,
            "hardware": release.hardware,
        }
        rows.append(row | (reports[offer].to_dict() if reports else {}))
    if as_json:
        emit({"version": opened.version, "releases": rows, "roles": opened.roles()})
        return
    shown: dict[str, Any] = {
        "rollout": lambda share: f"{100 * share:g}%",
        "features": len,
        "hardware": lambda names: ", ".join(names) or "all",
        **dict.fromkeys(FIGURES, lambda share: percent(float("nan") if share is None else share)),
    }
    names = list(rows[0]) if rows else ["release"]
    cells = [[shown.get(name, str)(row[name]) for name in names] for row in rows]
    table(f"Releases in {repo}", names, cells)
    table(
        "Roles",
        ("role", "version", "expires", "keys"),
        [
            (r["role"], r["version"], r["expires"][:10], f"{r['threshold']} of {len(r['keys'])}")
            for r in opened.roles()
        ],
    )


commands = {"repo": _app}


def _share(text: str) -> float:
    """Read a share: ``10%`` or ``0.1``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError(f"{text!r} is no share: give one as 10% or 0.1") from None


def _percent(offer: OfferedRelease) -> str:
    return f"{offer.rollout / 100:g}%"


def _words(report: RolloutReport) -> str:
    shares = ", ".join(f"{figure} {percent(report.share(figure)[0])}" for figure in FIGURES)
    return f"{len(report.running)} run it, on {len(report.refused)} it failed; {shares}"


def _offered(offer: OfferedRelease) -> str:
    return f"{offer} is offered to {_percent(offer)} of the devices"


def _print_offers(as_json: bool, repository: Repository, offers: Iterable[OfferedRelease]) -> None:
    document: dict[str, Any] = {"version": repository.version}
    text = [f"{repository.folder} is at version {repository.version}"]
    for offer in offers:
        document |= {
            "release": str(offer),
            "serial": offer.serial,
            "rollout": offer.rollout / WHOLE,
        }
        text.append(_offered(offer))
    _print(as_json, document, "; ".join(text))


def _print(as_json: bool, document: Mapping[str, Any], text: str) -> None:
    if as_json:
        emit(document)
    else:
        print(text)
