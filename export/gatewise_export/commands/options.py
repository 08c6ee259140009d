"""Arguments and options that several sub-commands share.

Types with names that end in ``Setting`` annotate fields of settings classes and check bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gatewise.documents import Amount, Share
from gatewise.errors import InputError
from gatewise.formats import read_bytes

BundlePath = Annotated[Path, typer.Argument(help="Bundle: a directory or a .gwb file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of text.")]
_BUDGET = typer.Option(help="Largest mean cost per instance.")
_OFFLOAD_RATE = typer.Option(help="Largest share of offloaded instances; 0 if there is no link.")
_MIN_RECALL = typer.Option(metavar="CLASS=SHARE", help="Smallest recall of a class. Repeatable.")
_MIN_PRECISION = typer.Option(
    metavar="CLASS=SHARE", help="Smallest precision of a class. Repeatable."
)
Budget = Annotated[float | None, _BUDGET]
BudgetSetting = Annotated[Amount | None, _BUDGET]
MaxLoss = Annotated[
    float | None, typer.Option(help="Largest loss of accuracy against the high-cost model.")
]
OffloadRate = Annotated[float | None, _OFFLOAD_RATE]
OffloadRateSetting = Annotated[Share | None, _OFFLOAD_RATE]
MinRecall = Annotated[list[str] | None, _MIN_RECALL]
MinRecallSetting = Annotated[tuple[str, ...], _MIN_RECALL]
MinPrecision = Annotated[list[str] | None, _MIN_PRECISION]
MinPrecisionSetting = Annotated[tuple[str, ...], _MIN_PRECISION]
MaxBytes = Annotated[
    str | None,
    typer.Option(help="Largest size of the stages on a device, such as 65536, 64KB or 1MB."),
]
Sign = Annotated[
    Path | None, typer.Option(help="PEM file of the private Ed25519 key that signs the bundle.")
]
PublicKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--public-key", help="PEM file of the public key that must have signed the bundle."
    ),
]
Target = Annotated[
    str | None, typer.Option(help="Column of the label; by default target, label, class or y.")
]
_BLOCK = typer.Option(
    "--block",
    metavar="NAME=MODULE:FUNCTION",
    help="Python function of a block; bundles do not contain functions. Repeatable.",
)
BlockFunctions = Annotated[list[str] | None, _BLOCK]
BlockFunctionsSetting = Annotated[tuple[str, ...], _BLOCK]
Archive = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder that `gatewise cloud --keep` writes.")
]
ArchivedVersion = Annotated[
    str | None,
    typer.Option(help="VERSION or MODEL/VERSION; by default that of the latest instances."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 selects a free port.")]
CaFile = Annotated[
    Path | None, typer.Option(help="Certificates of the authorities to trust for mqtts://.")
]
KeyFile = Annotated[Path | None, typer.Option(help="Private key of --cert-file.")]
Out = Annotated[Path, typer.Option(help="Bundle to write: a directory or a .gwb file.")]
BundleName = Annotated[
    str | None, typer.Option(help="Name of the bundle; by default the name of the data.")
]
BundleVersion = Annotated[str, typer.Option(help="Version of the bundle.")]


def bytes_option(text: str | None) -> int | None:
    """Parse the option ``--max-bytes``."""
    return None if text is None else read_bytes(text, "--max-bytes")


def by_class_option(name: str, option_values: Sequence[str] | None) -> dict[str, float]:
    """Parse the values ``class=number`` of an option, at most one per class.

    >>> by_class_option("--min-recall", ["fault=0.9"])
    {'fault': 0.9}
    """
    number_of_class: dict[str, float] = {}
    for option_value in option_values or ():
        label, separator, number_text = option_value.rpartition("=")
        try:
            number = float(number_text)
        except ValueError:
            separator = ""
        if not separator or not label:
            raise InputError(
                f"{name} {option_value}: give a class and a number, such as {name} fault=0.9"
            )
        if label in number_of_class:
            raise InputError(f"{name} {option_value}: the class already has a number; give one")
        number_of_class[label] = number
    return number_of_class


def loss_option(option_values: Sequence[str] | None) -> tuple[float | None, dict[str, float]]:
    """Parse ``--max-loss`` into the loss over all rows and losses by class.

    >>> loss_option(["fault=0.05", "0.02"])
    (0.02, {'fault': 0.05})
    """
    total_texts = [option_value for option_value in option_values or () if "=" not in option_value]
    if len(total_texts) > 1:
        raise InputError(f"--max-loss {total_texts[1]}: give one loss over all rows, not two")
    try:
        total_loss = float(total_texts[0]) if total_texts else None
    except ValueError:
        raise InputError(
            f"--max-loss {total_texts[0]}: give a number, or a class and its number such as "
            "fault=0.05"
        ) from None
    return total_loss, by_class_option(
        "--max-loss", [option_value for option_value in option_values or () if "=" in option_value]
    )


def chosen_goal(**options: float | None) -> dict[str, float]:
    """Get the goal option that is set, by name; raise InputError if several are set."""
    goal = {name: value for name, value in options.items() if value is not None}
    if len(goal) > 1:
        raise InputError("give only one of --budget, --max-loss and --offload-rate")
    return goal
