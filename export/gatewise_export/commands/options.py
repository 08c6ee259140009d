"""Arguments and options that several sub-commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatewise.errors import InputError

BundlePath = Annotated[Path, typer.Argument(help="The bundle: a directory or a .gwb file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Budget = Annotated[float | None, typer.Option(help="Mean cost per instance to spend at most.")]
MaxLoss = Annotated[
    float | None, typer.Option(help="Accuracy to give up at most against the high-cost model.")
]
OffloadRate = Annotated[float | None, typer.Option(help="Share of instances to offload at most.")]
MinRecall = Annotated[
    list[str] | None,
    typer.Option(help="CLASS=SHARE: least recall of a class, as fault=0.9; may be repeated."),
]
MinPrecision = Annotated[
    list[str] | None, typer.Option(help="CLASS=SHARE: least precision of a class; may be repeated.")
]
Sign = Annotated[
    Path | None, typer.Option(help="NAME.key as `gatewise keygen` writes it: sign the bundle.")
]
PublicKeyFile = Annotated[
    Path | None, typer.Option("--public-key", help="NAME.pub: refuse what is not signed by it.")
]
Target = Annotated[
    str | None, typer.Option(help="The label's column; target, label, class or y by itself.")
]
BlockFunctions = Annotated[
    list[str] | None,
    typer.Option(
        "--block",
        metavar="NAME=MODULE:FUNCTION",
        help="A block that is a Python function; bundles hold no code. May be repeated.",
    ),
]
Out = Annotated[Path, typer.Option(help="Where the bundle goes: a directory or a .gwb file.")]
BundleName = Annotated[str | None, typer.Option(help="Of the bundle; the data's by default.")]
BundleVersion = Annotated[str, typer.Option(help="Version of the bundle.")]


def chosen_goal(**options: float | None) -> dict[str, float]:
    """Take the one goal that is given, if any."""
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) > 1:
        raise InputError("give one of --budget, --max-loss and --offload-rate, not several")
    return given
