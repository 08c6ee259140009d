"""The sub-command ``gatewise outcomes``, which chooses thresholds from a table of outcomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from gatewise.columns.cells import read_category
from gatewise.console import emit, note, print_table
from gatewise.errors import InputError
from gatewise.formats import plural, threshold
from gatewise_export.commands import options

if TYPE_CHECKING:
    from pandas import DataFrame

    from gatewise_training.outcomes.outcome_table import Agreement

#: Largest number of frontier points in the printed table.
MAX_PRINTED_POINTS = 12


def outcomes(
    data: Annotated[Path, typer.Argument(help="Table of outcomes: .csv or .parquet.")],
    small_cost: Annotated[
        list[str],
        typer.Option(
            metavar="COST|COLUMN", help="Cost per row of a small system. Repeatable, in order."
        ),
    ],
    big_cost: Annotated[
        str, typer.Option(metavar="COST|COLUMN", help="Cost per row of the big system.")
    ],
    score: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of a small system's score, higher if more confident. Repeatable."
        ),
    ] = None,
    small_loss: Annotated[
        list[str] | None, typer.Option(help="Column of a small system's losses. Repeatable.")
    ] = None,
    big_loss: Annotated[str | None, typer.Option(help="Column of the big system's losses.")] = None,
    agreement: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Columns of small models' answers; the score is the share of equal answers.",
        ),
    ] = None,
    truth: Annotated[
        str | None, typer.Option(help="Column of the correct answer; required with --agreement.")
    ] = None,
    big_answer: Annotated[
        str | None,
        typer.Option(help="Column of the big system's answer; required with --agreement."),
    ] = None,
    routed: Annotated[
        bool,
        typer.Option(
            "--routed", help="Scores are known before any system runs, so only one system runs."
        ),
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Column that groups rows, such as a conversation's id.")
    ] = None,
    budget: options.Budget = None,
    max_loss: Annotated[
        float | None,
        typer.Option(help="Largest mean loss above the big system's loss; by default 0.01."),
    ] = None,
    offload_rate: options.OffloadRate = None,
    guarantee: Annotated[
        float, typer.Option(help="Confidence that the bound holds on new rows; 0 for no test.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Seed for splitting the rows.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file for the thresholds.")] = None,
    as_json: options.AsJson = False,
) -> None:
    r"""Choose the score thresholds of small systems from a table of outcomes.

    Each row has the score of a small system, the losses of the small system's answer and of the big
    system's answer, and the costs of both. The small system answers if its score reaches the
    threshold. A loss is a number from 0 to 1.

    Examples:

        gatewise outcomes log.csv --score sure --small-loss small_wrong --big-loss big_wrong \
          --small-cost 0.1 --big-cost 2 --max-loss 0.01 --out thresholds.json
        gatewise outcomes log.csv --agreement a,b,c --truth label --big-answer big \
          --small-cost 0.3 --big-cost 2
    """
    from gatewise_training.data.table_columns import ColumnOptions
    from gatewise_training.data.table_files import read_frame
    from gatewise_training.outcomes.outcome_cascade import OutcomeCascade
    from gatewise_training.outcomes.outcome_table import Outcomes

    goal: dict[str, Any] = options.chosen_goal(
        budget=budget, max_loss=max_loss, offload_rate=offload_rate
    )
    frame, _ = read_frame(data, ColumnOptions(), lambda columns: None)
    columns = _Columns(data, frame)
    if agreement is not None:
        score_columns: dict[str, Any] = _columns_of_agreement(columns, agreement, truth, big_answer)
        if score or small_loss or big_loss:
            raise InputError("--agreement replaces --score, --small-loss and --big-loss")
    elif not score or not small_loss or big_loss is None or truth or big_answer:
        raise InputError(
            "give --score, --small-loss and --big-loss, or --agreement, --truth and --big-answer"
        )
    else:
        score_columns = {
            "scores": columns.numbers(score),
            "small_losses": columns.numbers(small_loss),
            "big_losses": columns.numbers([big_loss])[:, 0],
        }
    outcome_table = Outcomes(
        **score_columns,
        small_cost=columns.costs(small_cost),
        big_cost=columns.costs([big_cost]),
        is_routed=routed,
        groups=None if group is None else columns.values(group),
    )
    # choose the thresholds, then write and print them
    cascade = OutcomeCascade(guarantee=guarantee or None, random_state=seed, **goal)
    cascade.fit(outcome_table)
    document = cascade.to_dict()
    if out is not None:
        out.write_text(json.dumps(document, indent=2) + "\n")
    if as_json:
        emit(document)
        return
    _print_frontier(document["frontier"])
    print(f"\n{cascade.summary()}")
    if out is not None:
        note(f"wrote {out}")


# -- parts ---------------------------------------------------------------------------------


class _Columns:
    """Columns of the table of outcomes; its errors name the file."""

    def __init__(self, path: Path, frame: DataFrame) -> None:
        self._path = path
        self._frame = frame

    def values(self, name: str) -> NDArray[Any]:
        name = name.strip()
        if name not in self._frame.columns:
            column_names = ", ".join(map(str, self._frame.columns))
            raise InputError(f"{self._path} has no column {name!r}; its columns are {column_names}")
        return self._frame[name].to_numpy()

    def answers(self, name: str) -> NDArray[Any]:
        """Get a column of answers as text; integers have the same text in a column of floats.

        A missing answer is refused, because it would count as wrong, and two missing answers would
        agree.
        """
        cells = self.values(name)
        is_missing = self._frame[name.strip()].isna().to_numpy()
        if is_missing.any():
            raise InputError(
                f"{self._path}: column {name.strip()!r} has no answer in "
                f"{plural(int(is_missing.sum()), 'row')}: leave these rows out, or write a text "
                "such as no-answer"
            )
        return np.array([read_category(cell) for cell in cells.tolist()])

    def numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Get columns of numbers, shape (n, n_names)."""
        columns = [self.values(name) for name in names]
        try:
            return np.stack([cells.astype(np.float64) for cells in columns], axis=1)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{self._path}: {', '.join(names)} must hold numbers: {error}"
            ) from None

    def costs(self, costs_or_columns: Sequence[str]) -> NDArray[np.float64]:
        """Get costs from numbers or column names, one column each."""
        n_rows = len(self._frame)
        costs = []
        for cost_or_column in costs_or_columns:
            try:
                costs.append(np.full(n_rows, float(cost_or_column)))
            except ValueError:
                costs.append(self.numbers([cost_or_column])[:, 0])
        return np.stack(costs, axis=1)


def _columns_of_agreement(
    columns: _Columns, answer_columns: str, truth: str | None, big_answer: str | None
) -> dict[str, NDArray[Any]]:
    """Compute scores from the agreement of answers, and losses of 1 for wrong answers."""
    from gatewise_training.outcomes.outcome_table import agreement

    if truth is None or big_answer is None:
        raise InputError("--agreement needs --truth and --big-answer")
    answers = np.stack([columns.answers(name) for name in answer_columns.split(",")], axis=1)
    true_answers = columns.answers(truth)
    answer_agreement: Agreement = agreement(answers)
    return {
        "scores": answer_agreement.share,
        "small_losses": answer_agreement.answers != true_answers,
        "big_losses": columns.answers(big_answer) != true_answers,
    }


def _print_frontier(points: Sequence[dict[str, Any]]) -> None:
    """Print the frontier; of a long frontier print evenly spaced points."""
    n_shown = min(len(points), MAX_PRINTED_POINTS)
    positions = np.linspace(0, len(points) - 1, n_shown)
    shown_points = [points[index] for index in sorted(set(positions.round().astype(int).tolist()))]
    print_table(
        f"frontier, {n_shown} of {len(points)} points",
        ("cost", "loss", "offloaded", "score thresholds"),
        [
            (
                f"{point['cost']:.4g}",
                f"{point['loss']:.4f}",
                f"{point['offload_rate']:.1%}",
                ", ".join(threshold(stop_threshold) for stop_threshold in point["thresholds"]),
            )
            for point in shown_points
        ],
    )
