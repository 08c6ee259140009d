"""Problems that make columns of a raw table unusable for training, and options that solve them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from gatewise.columns.cells import ISO
from gatewise.columns.kinds import (
    DROP,
    KINDS,
    MAX_LEARNED_CATEGORIES,
    BooleanColumn,
    NumberColumn,
    read_kind,
)
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_training.data.table_columns import (
    MAX_ODD_CELLS,
    ColumnFacts,
    ColumnOptions,
    count_cells,
    list_refused,
    table_facts,
)

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: Longest name of a column, which a manifest and error messages contain.
_MAX_NAME_BYTES: Final = 200
#: Largest number of columns that a message names.
_MAX_SHOWN_NAMES: Final = 20

#: How a message writes options: as flags of ``gatewise train`` or as arguments of TableEncoder.
Style = Literal["flags", "python"]
#: An option, with underscores, and its value, or None for a switch.
Option = tuple[str, str | None]
#: Options that together solve a problem.
Remedy = tuple[Option, ...]


@dataclass(frozen=True)
class ColumnProblem:
    """A reason why a column cannot be used, and sets of options that help, the best first."""

    column: str
    reason: str
    remedies: tuple[Remedy, ...] = ()


def column_problems(
    frame: DataFrame, options: ColumnOptions, facts: Mapping[str, ColumnFacts] | None = None
) -> list[ColumnProblem]:
    """List the problems of columns that cannot be used.

    If `facts` is None, collect the facts about the columns that are not dropped.
    """
    columns = [str(name) for name in frame.columns]
    unknown_names = [name for name in options.kinds if name not in columns]
    problems = [
        ColumnProblem(name, "is named, but there is no such column") for name in unknown_names
    ]
    if unknown_names:
        shown_names = ", ".join(columns[:_MAX_SHOWN_NAMES])
        if len(columns) > _MAX_SHOWN_NAMES:
            shown_names += ", ..."
        problems[-1] = replace(problems[-1], reason=f"{problems[-1].reason}; it has {shown_names}")
    kinds = {}
    for name, kind_text in options.kinds.items():
        try:
            kind, kind_format = read_kind(kind_text)
            if kind != DROP:
                KINDS[kind].check_format(kind_format)
        except InputError as error:
            problems.append(ColumnProblem(name, str(error)))
        else:
            kinds[name] = (kind, kind_format)
    invalid_names = options.kinds.keys() - kinds.keys()
    used_columns = [
        name
        for name in columns
        if kinds.get(name, ("", ""))[0] != DROP and name not in invalid_names
    ]
    if facts is None:
        facts = table_facts(frame[used_columns], options.normalised_missing_words)
    for name in used_columns:
        problem = _find_column_problem(name, frame[name], facts[name], kinds.get(name), options)
        if problem is not None:
            problems.append(problem)
    return problems


def _find_column_problem(
    name: str,
    cells: Series,
    facts: ColumnFacts,
    declared_kind: tuple[str, str] | None,
    options: ColumnOptions,
) -> ColumnProblem | None:
    """Find the problem of a column; `declared_kind` is its kind and format, if it has one."""
    drop_remedy = (_make_kind_option(name, DROP),)
    if not (name.isprintable() and 1 <= len(name.encode(errors="replace")) <= _MAX_NAME_BYTES):
        return ColumnProblem(
            name, "has a name that is empty, long or not printable", (drop_remedy,)
        )
    if facts.kind == "empty":
        return ColumnProblem(name, "is empty", (drop_remedy,))
    if facts.kind == "lists":
        return ColumnProblem(name, "holds lists, not single values", (drop_remedy,))
    accepts_missing = options.impute or options.allow_missing
    if declared_kind is None:
        problem = _check_undeclared(name, facts, advise_impute=not accepts_missing)
    else:
        missing_words = options.normalised_missing_words
        problem = _check_declared(
            name,
            count_cells(cells, missing_words),
            *declared_kind,
            advise_impute=not accepts_missing,
        )
    if problem is not None:
        return problem
    kind = KINDS[facts.kind if declared_kind is None else declared_kind[0]]
    largest_float32 = float(np.finfo(np.float32).max)
    if kind is NumberColumn and max(-facts.min_number, facts.max_number) > largest_float32:
        return ColumnProblem(
            name, "has infinite values, or values too large for float32", (drop_remedy,)
        )
    if facts.n_missing and not accepts_missing and not kind.takes_missing:
        reason = f"is empty (NaN) in {facts.n_missing:,} of {facts.n_rows:,} rows"
        return ColumnProblem(name, reason, ((("impute", None),), (("allow_missing", None),)))
    return None


def _check_undeclared(
    name: str, facts: ColumnFacts, *, advise_impute: bool
) -> ColumnProblem | None:
    """Find the problem of a column without a declared kind; numbers and booleans need none."""
    drop_remedy = (_make_kind_option(name, DROP),)
    category_remedy = (_make_kind_option(name, "category"),)
    missing_remedy: Remedy = tuple(("na", cell) for cell in facts.odd_cells)
    if advise_impute and (missing_remedy or facts.n_missing):
        missing_remedy += (("impute", None),)
    examples = ", ".join(map(repr, facts.odd_cells[:3]))
    if facts.comma_role is not None:
        return ColumnProblem(name, f"has {facts.comma_advice}")
    if facts.kind == "number" and facts.odd_cells:
        reason = f"is not numbers in {plural(facts.n_odd_rows, 'row')} (as {examples})"
        return ColumnProblem(name, reason, (missing_remedy, drop_remedy))
    if facts.kind == "number" and facts.n_distinct == facts.n_rows and name.startswith("Unnamed: "):
        return ColumnProblem(name, "has no name and numbers the rows", (drop_remedy,))
    if facts.kind in ("number", "boolean"):
        return None
    if facts.kind == "time":
        reason = f"holds dates (as {facts.example!r})"
        if facts.odd_cells:
            reason += f", in {plural(facts.n_odd_rows, 'row')} not (as {examples})"
        time_kinds = [
            "time" if date_format == ISO else f"time:{date_format}"
            for date_format in facts.date_formats
        ]
        time_remedies = [
            (_make_kind_option(name, kind_text), *missing_remedy) for kind_text in time_kinds
        ]
        return ColumnProblem(name, reason, (*time_remedies, drop_remedy))
    if facts.n_distinct == 1 and not facts.n_missing:
        reason = f"has the text {facts.example!r} in all rows"
        return ColumnProblem(name, reason, (drop_remedy, category_remedy))
    reason = f"is not numbers: {facts.n_distinct:,} different texts (as {facts.example!r})"
    if facts.n_distinct > MAX_LEARNED_CATEGORIES:
        return ColumnProblem(name, reason, (drop_remedy,))
    if facts.kind == "category":
        return ColumnProblem(name, reason, (category_remedy, drop_remedy))
    return ColumnProblem(name, reason, (drop_remedy, category_remedy))


def _check_declared(
    name: str, counts: Counter[Any], kind_name: str, kind_format: str, *, advise_impute: bool
) -> ColumnProblem | None:
    """Find the problem of a column, with `counts` of its cells, that has a declared kind."""
    kind = KINDS[kind_name]
    drop_remedy = (_make_kind_option(name, DROP),)
    odd_cells = list_refused(counts, lambda cell: kind.check_cell(cell, kind_format))
    if odd_cells:
        n_odd_rows = sum(counts[cell] for cell in odd_cells)
        examples = ", ".join(repr(str(cell).strip()[:40]) for cell in odd_cells[:3])
        required_form = f"{kind.requirement} as {kind_format}" if kind_format else kind.requirement
        reason = f"is not {required_form} in {plural(n_odd_rows, 'row')} (as {examples})"
        if kind is BooleanColumn and len(odd_cells) == len(counts) <= MAX_LEARNED_CATEGORIES:
            category_remedy = (_make_kind_option(name, "category"),)
            return ColumnProblem(name, f"{reason}; make it a category", (category_remedy,))
        remedies: tuple[Remedy, ...] = (drop_remedy,)
        if len(odd_cells) <= MAX_ODD_CELLS:
            missing_remedy: list[Option] = [("na", str(cell).strip()) for cell in odd_cells]
            if advise_impute and not kind.takes_missing:
                missing_remedy.append(("impute", None))
            remedies = (tuple(missing_remedy), drop_remedy)
        return ColumnProblem(name, reason, remedies)
    if kind.max_distinct is not None and len(counts) > kind.max_distinct:
        reason = f"has {len(counts):,} categories, more than {kind.max_distinct:,}"
        return ColumnProblem(name, reason, (drop_remedy,))
    return None


def _make_kind_option(name: str, kind: str) -> Option:
    """Get the option that gives a column a kind."""
    return ("drop", name) if kind == DROP else ("column", f"{name}={kind}")


def problem_text(problems: Sequence[ColumnProblem], *, style: Style) -> str:
    """Write problems in one line, with the options for each column and those for all columns."""
    texts = []
    for problem in problems[:_MAX_SHOWN_NAMES]:
        choices = " or ".join(_write_remedy(remedy, style) for remedy in problem.remedies)
        texts.append(f"{problem.column!r} {problem.reason}" + (f" ({choices})" if choices else ""))
    if len(problems) > _MAX_SHOWN_NAMES:
        texts.append(f"and {len(problems) - _MAX_SHOWN_NAMES} more")
    first_remedies = [problem.remedies[0] for problem in problems if problem.remedies]
    all_have_remedies = len(first_remedies) == len(problems)
    subject = "a column needs" if len(problems) == 1 else f"{len(problems)} columns need"
    text = f"{subject} {'an option' if all_have_remedies else 'a change'}: {'; '.join(texts)}"
    if len(first_remedies) > 1:
        all_options = tuple(dict.fromkeys(chain.from_iterable(first_remedies)))
        mended_columns = "all" if all_have_remedies else "those with options"
        text += f". To mend {mended_columns}: {_write_remedy(all_options, style)}"
        if style == "flags":
            text += "; or have `gatewise init` write a file of kinds, for --costs"
    return text


def _write_remedy(remedy: Remedy, style: Style) -> str:
    """Write options as flags of ``gatewise train`` or as arguments of TableEncoder."""
    if style == "flags":
        return " ".join(
            f"--{option.replace('_', '-')}" + ("" if value is None else f" {shlex.quote(value)}")
            for option, value in remedy
        )
    columns = dict(
        value.rpartition("=")[::2] for option, value in remedy if option == "column" and value
    )
    columns |= {value: DROP for option, value in remedy if option == "drop" and value}
    missing_words = [value for option, value in remedy if option == "na"]
    arguments = [f"columns={columns!r}"] if columns else []
    arguments += [f"missing_words={missing_words!r}"] if missing_words else []
    return ", ".join([*arguments, *(f"{option}=True" for option, value in remedy if value is None)])
