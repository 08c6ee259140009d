"""``gatewise labels``: choose instances for people to label, and take their labels back."""

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
from gatewise_export.archive.choice import choice_csv, choose, read_choices, write_choice
from gatewise_export.archive.label_page import label_studio_tasks, page_of_choice
from gatewise_export.archive.labels import add_labels, check_labels, read_label_csv
from gatewise_export.commands.options import AsJson

_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Archive = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `cloud --keep`.")]


@_app.callback()
def labels() -> None:
    """Choose kept instances for people to label, and take the labels back.

    Both commands print one JSON document with --json.

      gatewise labels choose kept --n 200
      gatewise labels add kept to-label.csv
    """


@_app.command("choose")
def choose_instances(
    archive: Archive,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of instances, on average.")] = 200,
    out: Annotated[Path, typer.Option(help="CSV to write, with an empty column `label`.")] = Path(
        "to-label.csv"
    ),
    page: Annotated[Path | None, typer.Option(help="HTML page to label on, in addition.")] = None,
    label_studio: Annotated[
        Path | None, typer.Option(help="Tasks of Label Studio in JSON, in addition.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Version of the model; by default the newest.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the choice; by default from the system.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose the instances that are worth a person's time, each with a known chance.

    Half are drawn evenly from the traffic that the instances represent, the others from answers in
    doubt, small margins, answers that differ from the high-cost model's, and regions with few
    instances. Each choice is made from instances that no earlier choice covered. Chosen instances
    stay in DIR/labels when their originals are deleted from DIR.

      gatewise labels choose kept --n 200
      gatewise labels choose kept --n 200 --page label.html
    """
    # before anything is written, so that a refused choice leaves no file
    for file in (out, page, label_studio):
        if file is not None and file.exists():
            raise InputError(f"{file} exists: move it away, or name another file")
    choice = choose(archive, n, np.random.default_rng(seed), version=version)
    texts = {out: choice_csv(choice)}
    if page is not None:
        texts[page] = page_of_choice(choice)
    if label_studio is not None:
        texts[label_studio] = label_studio_tasks(choice)
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    write_choice(archive, choice, f"{int(time.time() * 1000):015d}")
    reasons, counts = np.unique(choice.reason, return_counts=True)
    by_reason = dict(zip(reasons.tolist(), counts.tolist(), strict=True))
    text = f"{len(choice.rows)} instances of {choice.facts.model} {choice.facts.version} in {out}"
    if by_reason:
        text += ": " + ", ".join(f"{count} {reason}" for reason, count in by_reason.items())
    document = {"chosen": len(choice.rows), "reasons": by_reason, "out": str(out)}
    print_line(text, document, as_json=as_json)
    if not as_json:
        note(f"fill in its column `label`, then: gatewise labels add {archive} {out}")


@_app.command()
def add(
    archive: Archive,
    file: Annotated[Path, typer.Argument(metavar="LABELS.csv", help="Columns id and label.")],
    by: Annotated[str | None, typer.Option(help="Who gave the labels; by default you.")] = None,
    new_class: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Class that the model does not have. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add the labels of a CSV, checked, with who gave them and when.

    Rows with an empty label are ignored. If an id was not chosen or a class is unknown, no label is
    added. A new label of an instance replaces the old one.

      gatewise labels add kept to-label.csv
      gatewise labels add kept to-label.csv --by anna --new-class broken
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    label_of = read_label_csv(text)
    choices = read_choices(archive)
    if not choices:
        raise InputError(f"{archive} has no choice: gatewise labels choose {archive}")
    check_labels(label_of, choices, new_class or ())
    n_new = add_labels(archive, label_of, by=by or _user(), at=time.time())
    n_chosen = sum(len(choice.rows) for choice in choices)
    document = {"labels": len(label_of), "new": n_new, "chosen": n_chosen}
    print_line(f"{len(label_of)} labels, {n_new} of them new", document, as_json=as_json)


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "unknown"


commands = {"labels": _app}
