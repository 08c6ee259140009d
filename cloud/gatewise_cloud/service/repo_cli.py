"""Command ``gatewise repo``, which publishes releases and rolls them out to devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gatewise.console import emit, note, print_table
from gatewise.errors import InputError
from gatewise.formats import percent
from gatewise.settings import Settings, with_options
from gatewise_cloud.broker.abort_limits import AbortLimits, read_share
from gatewise_cloud.broker.rollout import RolloutEnd, announce
from gatewise_cloud.broker.rollout_report import METRICS, read_reports
from gatewise_cloud.service.watched_rollout import WatchedRollout, share_text
from gatewise_edge.link.endpoint import Endpoint
from gatewise_export.commands import options
from gatewise_export.repository.release import FULL_ROLLOUT, OfferedRelease
from gatewise_export.repository.repository import Repository

#: Exit status of a rollout with --every, by its outcome; 2 is the status of usage errors.
EXIT_STATUSES: Final = {
    "done": 0,
    "withdrawn": 1,
    "no-evidence": 3,
    "superseded": 4,
    "undecided": 5,
}

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Publish releases for devices as signed, static files for any web server.

    Examples:

        gatewise repo init fleet

        gatewise repo add fleet digits-8.gwb

        gatewise repo publish fleet digits/8 --rollout 10%

        gatewise repo status fleet --json
    """,
)

_Folder = Annotated[Path, typer.Argument(metavar="REPO", help="Folder of the repository.")]
_Keys = Annotated[
    Path | None, typer.Option(help="Folder of the private keys; by default REPO.keys.")
]
_Version = Annotated[
    int | None,
    typer.Option(help="Expected version of the repository; any other version is an error."),
]


class BrokerAccess(Settings, frozen=True):
    """Broker to which devices report, and the operator's certificate."""

    broker: Annotated[
        str | None,
        typer.Option(
            help="URL of the broker that notifies devices: mqtt(s)://[user:password@]host."
        ),
    ] = None
    ca_file: options.CaFile = None
    cert_file: Annotated[Path | None, typer.Option(help="Certificate of the operator.")] = None
    key_file: options.KeyFile = None

    def make_endpoint(self) -> Endpoint | None:
        """Make the broker's endpoint; None without a broker."""
        if self.broker is None:
            if self.ca_file or self.cert_file or self.key_file:
                raise InputError("--ca-file, --cert-file and --key-file need --broker")
            return None
        return Endpoint(
            self.broker, ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file
        )


@app.command()
def init(
    repo: _Folder,
    keys: _Keys = None,
    root_keys: Annotated[int, typer.Option(min=1, help="Number of root keys to make.")] = 1,
    threshold: Annotated[int, typer.Option(min=1, help="Number of root keys that must sign.")] = 1,
    as_json: options.AsJson = False,
) -> None:
    """Make a repository and its keys.

    Keep the keys off the web server, and the root keys offline. The command prints the path of the
    root metadata, which each device needs: gatewise edge --trust.

    Example:

        gatewise repo init fleet --root-keys 3 --threshold 2
    """
    repository = Repository.init(repo, keys, n_root_keys=root_keys, threshold=threshold)
    text = f"repository {repo}, keys in {repository.keys}; devices trust {repository.root_file}"
    _print_outcome(as_json, {"root": repository.root_file, "keys": repository.keys}, text)


@app.command()
def add(
    repo: _Folder,
    bundle: options.BundlePath,
    keys: _Keys = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            help="Machine of the devices, as `uname -m` prints it; by default all. Repeatable."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Add a bundle, without its high-cost model, as a release that publish can offer.

    Example:

        gatewise repo add fleet digits-8.gwb --hardware aarch64
    """
    release = Repository(repo, keys).add(bundle, hardware=hardware or [])
    n_bytes = sum(file_spec.size for file_spec in release.files.values())
    _print_outcome(
        as_json, {"release": str(release), "bytes": n_bytes}, f"added {release}: {n_bytes} bytes"
    )


@app.command()
@with_options
def publish(
    repo: _Folder,
    access: BrokerAccess,
    limits: AbortLimits,
    release: Annotated[
        str | None,
        typer.Argument(help="MODEL/VERSION; without it, renew signatures that expire soon."),
    ] = None,
    keys: _Keys = None,
    rollout: Annotated[
        str,
        typer.Option(help="Share of the devices, such as 10%; with --every steps: 5%,25%,100%."),
    ] = "100%",
    every: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds between two checks of a step.")
    ] = None,
    at_version: _Version = None,
    as_json: options.AsJson = False,
) -> None:
    r"""Offer a release to a share of the devices.

    Run the command again with a larger share, or give --every to offer the release to one share
    after another. A step ends when enough of its devices report that they run the release. The exit
    status says how the rollout ended:

      0: the release reached the last share.

      1: it was withdrawn because reports exceeded --above or --worse-by.

      3: it was withdrawn because ten checks of a step gave no evidence.

      4: another release was published during the rollout.

      5: --worse-by could not be decided, and the release stays at its share.

    With --worse-by, fewer than half of the devices get the release until there is enough
    information to detect an excess of 2 points over the limit. A tenth of the devices keep the old
    release until the last step. The command prints how many answers this needs.

    If you interrupt a rollout, the same command continues it.

    Upload REPO after each change, and metadata/timestamp.json as the last file. Without a release
    the command only renews signatures. Run it once a day before the timestamp expires.

    Examples:

        gatewise repo publish fleet digits/8 --rollout 10% --broker mqtts://broker.example
        gatewise repo publish fleet digits/8 --rollout 5%,25%,100% --every 3600 \
            --above 5% --worse-by 1% --broker mqtts://broker.example
    """
    if at_version is not None and (every is not None or release is None):
        raise InputError("--at-version needs a release, and cannot be used with --every")
    repository = Repository(repo, keys)
    if every is not None:
        if release is None:
            raise InputError("--every needs a release: give MODEL/VERSION")
        endpoint = access.make_endpoint()
        if endpoint is None:
            raise InputError("--every needs --broker, to which devices report")
        shares = [read_share(share.strip()) for share in rollout.split(",")]
        watched_rollout = WatchedRollout(repository, endpoint, limits, every)
        rollout_end, document = watched_rollout.run(release, shares)
        _print_outcome(as_json, document, _describe_end(rollout_end))
        raise typer.Exit(EXIT_STATUSES[rollout_end.outcome])
    if limits:
        raise InputError("--above and --worse-by need --every")
    endpoint = access.make_endpoint()
    if release is None:
        for role, expires in repository.refresh().items():
            note(
                f"gatewise: {role} expires on {expires:%Y-%m-%d}, but its keys are not in "
                f"{repository.keys}: run this command where they are, because devices refuse "
                "updates after that day"
            )
        offer = None
    else:
        offer = repository.publish(release, read_share(rollout), expected_version=at_version)
    if endpoint is not None:
        announce(repository, repository.offers() if offer is None else [offer], endpoint)
    _print_offer(as_json, repository, offer)


@app.command()
@with_options
def rollback(
    repo: _Folder,
    release: Annotated[str, typer.Argument(help="MODEL/VERSION to withdraw.")],
    access: BrokerAccess,
    keys: _Keys = None,
    at_version: _Version = None,
    as_json: options.AsJson = False,
) -> None:
    """Withdraw a release, so that devices return to the previous release.

    Nothing changes if the release is withdrawn already. `publish --every` withdraws a release
    automatically.

    Example:

        gatewise repo rollback fleet digits/8 --broker mqtts://broker.example
    """
    repository = Repository(repo, keys)
    endpoint = access.make_endpoint()
    offer = repository.rollback(release, expected_version=at_version)
    if endpoint is not None:
        announce(repository, [offer], endpoint)
    _print_offer(as_json, repository, offer)
    if not as_json and repository.preferred_release(offer.model) is None:
        note(f"no release of {offer.model} is offered now: devices return to their first bundle")


@app.command(name="rotate-key")
def rotate_key(
    repo: _Folder,
    role: Annotated[
        str, typer.Argument(help="Role of the key: root, targets, snapshot or timestamp.")
    ],
    revoke: Annotated[
        str | None, typer.Option(help="Id of the key to revoke; by default the role's first key.")
    ] = None,
    keys: _Keys = None,
    as_json: options.AsJson = False,
) -> None:
    """Replace a key by a new one, which devices accept automatically.

    Example:

        gatewise repo rotate-key fleet timestamp
    """
    new_key = Repository(repo, keys).rotate_key(role, revoke=revoke)
    _print_outcome(
        as_json, {"role": role, "key": new_key}, f"{role} is signed by key {new_key[:16]} now"
    )


@app.command()
@with_options
def status(
    repo: _Folder, access: BrokerAccess, keys: _Keys = None, as_json: options.AsJson = False
) -> None:
    """Show releases with their rollouts, and the expiry of the metadata of each role.

    With --broker, also show how many devices run each release, and on how many it failed.
    """
    repository = Repository(repo, keys)
    endpoint = access.make_endpoint()
    offers = repository.offers()
    reports = {} if endpoint is None else read_reports(offers, endpoint)
    release_rows = []
    for offer in offers:
        release = repository.release(offer)
        row = {
            "release": str(offer),
            "serial": offer.serial,
            "rollout": offer.rollout / FULL_ROLLOUT,
            "bytes": sum(file.size for file in release.files.values()),
            "features": release.features,
            "runtime": release.runtime,
            "hardware": release.hardware,
        }
        release_rows.append(row | (reports[offer].to_dict() if reports else {}))
    if as_json:
        emit({"version": repository.version, "releases": release_rows, "roles": repository.roles()})
        return
    formatters: dict[str, Any] = {
        "rollout": lambda share: f"{100 * share:g}%",
        "features": len,
        "hardware": lambda machines: ", ".join(machines) or "all",
        **dict.fromkeys(METRICS, lambda share: percent(float("nan") if share is None else share)),
    }
    columns = list(release_rows[0]) if release_rows else ["release"]
    cells = [[formatters.get(name, str)(row[name]) for name in columns] for row in release_rows]
    print_table(f"Releases in {repo}", columns, cells)
    print_table(
        "Roles",
        ("role", "version", "expires", "keys"),
        [
            (
                role_row["role"],
                role_row["version"],
                role_row["expires"][:10],
                f"{role_row['threshold']} of {len(role_row['keys'])}",
            )
            for role_row in repository.roles()
        ],
    )


def _describe_end(rollout_end: RolloutEnd) -> str:
    offer = rollout_end.offer
    if rollout_end.abort_reason is None:
        return _describe_offer(offer)
    end_states = {"superseded": "superseded", "undecided": f"held at {share_text(offer)}"}
    end_state = end_states.get(rollout_end.outcome, "withdrawn")
    return f"{offer} is {end_state}: {rollout_end.abort_reason}"


def _describe_offer(offer: OfferedRelease) -> str:
    return f"{offer} is offered to {share_text(offer)} of the devices"


def _print_offer(as_json: bool, repository: Repository, offer: OfferedRelease | None) -> None:
    """Print the version of the repository, and an offer of a release if there is one."""
    document: dict[str, Any] = {"version": repository.version}
    texts = [f"{repository.folder} is at version {repository.version}"]
    if offer is not None:
        document |= {
            "release": str(offer),
            "serial": offer.serial,
            "rollout": offer.rollout / FULL_ROLLOUT,
        }
        texts.append(_describe_offer(offer))
    _print_outcome(as_json, document, "; ".join(texts))


def _print_outcome(as_json: bool, document: Mapping[str, Any], text: str) -> None:
    if as_json:
        emit(document)
    else:
        print(text)
