"""The command ``gatewise labels``, which chooses instances to label and adds their labels."""

from __future__ import annotations

import getpass
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from gatewise.console import note, print_line
from gatewise.errors import InputError
from gatewise_export.archive.choice import (
    Purpose,
    choice_csv,
    choose,
    lock_choices,
    read_choices,
    write_choice,
)
from gatewise_export.archive.label_page import page_of_choice
from gatewise_export.archive.labels import add_labels, checked_labels, read_label_csv
from gatewise_export.bundle.storage import write_file
from gatewise_export.commands.options import Archive, ArchivedVersion, AsJson

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def labels() -> None:
    """Choose kept instances for people to label, and add their labels to the archive.

    Both commands print one JSON document with --json.

    Examples:

        gatewise labels choose kept --n 200

        gatewise labels add kept to-label.csv
    """


@app.command("choose")
def choose_instances(
    archive: Archive,
    n_instances: Annotated[
        int, typer.Option("--n", min=1, help="Number of instances, on average.")
    ] = 200,
    out: Annotated[
        Path, typer.Option(help="CSV file to write, with an empty column `label`.")
    ] = Path("to-label.csv"),
    page: Annotated[Path | None, typer.Option(help="HTML file of a page for labelling.")] = None,
    version: ArchivedVersion = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the random choice; by default a random seed."),
    ] = None,
    purpose: Annotated[
        Purpose, typer.Option("--for", help="Purpose of most of the labels.")
    ] = "estimate",
    as_json: AsJson = False,
) -> None:
    """Choose informative instances for people to label, with known probabilities.

    A quarter of the instances is chosen evenly from the traffic. For an estimate, the others are
    mostly doubtful answers; some differ from the high-cost model's or are in regions with few
    instances. For a refit, the others lie where two classes meet. Each choice uses only instances
    that no earlier choice covered. DIR/labels keeps a copy of each chosen instance, because the
    archive may delete the original.

    Examples:

        gatewise labels choose kept --n 200
        gatewise labels choose kept --n 50 --for refit
        gatewise labels choose kept --n 200 --page label.html
    """
    paths = [out] if page is None else [out, page]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("--out and --page need different files")
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists: move it, or name another file")
    with lock_choices(archive):
        choice = choose(
            archive, n_instances, np.random.default_rng(seed), version=version, purpose=purpose
        )
        text_of_path = {out: choice_csv(choice)}
        if page is not None:
            text_of_path[page] = page_of_choice(choice)
        try:
            for path, text in text_of_path.items():
                write_file(path, text.encode())
            # 15 digits of milliseconds, so that the names of choices sort by time
            write_choice(archive, choice, f"{int(time.time() * 1000):015d}")
        except BaseException:
            # labels of a choice that is not recorded could not be added
            for path in paths:
                path.unlink(missing_ok=True)
            raise
    reasons, counts = np.unique(choice.main_reason, return_counts=True)
    count_by_reason = dict(zip(reasons.tolist(), counts.tolist(), strict=True))
    summary = (
        f"{len(choice.rows)} instances of {choice.facts.model} {choice.facts.version} in {out}"
    )
    if count_by_reason:
        summary += ": " + ", ".join(
            f"{count} {reason}" for reason, count in count_by_reason.items()
        )
    document = {"chosen": len(choice.rows), "reasons": count_by_reason, "out": str(out)}
    print_line(summary, document, as_json=as_json)
    if not as_json:
        note(f"fill in the column `label`, then run: gatewise labels add {archive} {out}")


@app.command()
def add(
    archive: Archive,
    file: Annotated[Path, typer.Argument(metavar="LABELS.csv", help="Columns id and label.")],
    by: Annotated[
        str | None, typer.Option(help="Name of the labeller; by default the current user.")
    ] = None,
    new_class: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Class that the model does not have. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the labels in a CSV, and add them to the archive with their author and time.

    Rows with an empty label are ignored. If no row has a label, if an instance was not chosen, or
    if a class is unknown, no label is added. A new label for an instance replaces its old label.

    Examples:

        gatewise labels add kept to-label.csv
        gatewise labels add kept to-label.csv --by anna --new-class broken
    """
    choices = read_choices(archive)
    if not choices:
        raise InputError(f"{archive} has no chosen instances: run gatewise labels choose {archive}")
    label_of_id = checked_labels(read_label_csv(file), choices, new_class or ())
    n_recorded = add_labels(archive, label_of_id, by=by or _user_name(), at=time.time())
    n_chosen = sum(len(choice.rows) for choice in choices)
    document = {"labels": len(label_of_id), "new": n_recorded, "chosen": n_chosen}
    print_line(
        f"{len(label_of_id)} labels, {n_recorded} of them new or changed", document, as_json=as_json
    )


def _user_name() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "unknown"
