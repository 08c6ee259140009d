"""Settings of a training run: data, method and bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from typer import Argument, Option

from gatewise.columns.kinds import DROP, KINDS, read_kind
from gatewise.documents import Amount, Positive
from gatewise.errors import InputError
from gatewise.prices import MAX_REQUEST_BYTES
from gatewise.settings import FileOption, Settings
from gatewise_export.commands import options
from gatewise_training.data.table_columns import ColumnOptions

RepeatedOption = tuple[str, ...]


class TrainingSettings(Settings, frozen=True, kw_only=True):
    """Options of ``gatewise train``, and settings that only Python callers use.

    Attributes
    ----------
    parameters : dict
        Additional parameters of the method.
    needs_cloud : bool
        Whether to refuse methods without a cloud.
    test_rows : int or None
        Largest number of test rows.
    rows : Path or None
        CSV file for the test rows.
    """

    dataset: Annotated[
        str, Argument(help="File: .csv, .parquet or .npz; or digits, wine, iris or breast_cancer.")
    ]
    out: options.Out
    target: options.Target = None
    method: Annotated[
        str,
        Option(
            help="Learning method: a cascade (staged, adapt-gbrt, adapt-lin, adapt-lstsq, l1, "
            "confidence) or a single model without a cloud (cegb, budget-forest, budget-prune, "
            "greedy-miser)."
        ),
    ] = "staged"
    budget: options.BudgetSetting = None
    max_loss: Annotated[
        RepeatedOption,
        Option(
            metavar="SHARE | CLASS=SHARE",
            help="Largest loss of accuracy against the high-cost model, by default 0.01, or of a "
            "class's recall, such as fault=0.05. Repeatable for several classes.",
        ),
    ] = ()
    offload_rate: options.OffloadRateSetting = None
    min_recall: options.MinRecallSetting = ()
    min_precision: options.MinPrecisionSetting = ()
    max_bytes: Annotated[
        str | None,
        Option(help="Largest size of the stages as C tables, such as 65536, 64KB or 1MB."),
    ] = None
    guarantee: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Option(help="Confidence of the bounds, such as 0.95; certified on calibration rows."),
    ] = None
    slack: Annotated[
        Amount | None,
        Option(
            help="Safety margin of --max-loss and bounds on classes, in standard errors; "
            "by default 1."
        ),
    ] = None
    costs: Annotated[
        Path | None, Option(help="File of feature prices: .toml or .csv; by default 1 each.")
    ] = None
    column: Annotated[
        RepeatedOption,
        Option(
            metavar="NAME=KIND",
            help=f"Kind of a column: {', '.join(KINDS)}, or drop (no feature). A boolean is y or "
            "n, or 1 or 0; an ordinal is a category as one number. A time may have a format, such "
            "as time:%d.%m.%Y or time:unix. Repeatable.",
        ),
    ] = ()
    drop: Annotated[
        RepeatedOption, Option(metavar="NAME", help="Column that is not a feature. Repeatable.")
    ] = ()
    na: Annotated[
        RepeatedOption,
        Option(help="Text of an empty cell, in addition to NA, null and ?. Repeatable."),
    ] = ()
    impute: Annotated[
        bool, Option("--impute", help="Fill empty cells and add a feature that marks them.")
    ] = False
    allow_missing: Annotated[
        bool, Option("--allow-missing", help="Accept empty cells (NaN) as values.")
    ] = False
    groups: Annotated[
        str | None,
        Option(
            help="Column, or array of an .npz, with each row's subject, machine or recording. It "
            "is not a feature; whole groups are held out."
        ),
    ] = None
    time_split: Annotated[
        str | None,
        Option(
            metavar="NAME[=FORMAT]",
            help="Column with each row's time, as numbers or dates. It is not a feature; the "
            "latest rows are test rows, and the latest other rows are validation rows.",
        ),
    ] = None
    seed: Annotated[int, Meta(ge=0), Option(help="Seed for the split and the models.")] = 0
    name: options.BundleName = None
    version: Annotated[str, Option("--bundle-version", help="Version of the bundle.")] = "1"
    max_instance_cost: Annotated[
        Positive | None, FileOption("Largest cost of any single instance.")
    ] = None
    max_message: Annotated[
        Annotated[int, Meta(ge=1)],
        FileOption(
            "Largest message of the broker, in bytes; by default 131072, the limit of AWS IoT Core."
        ),
    ] = MAX_REQUEST_BYTES
    test_size: Annotated[
        float, FileOption("Share of test rows, if the file has no test part; by default 0.25.")
    ] = 0.25
    class_weight: Annotated[
        Literal["balanced"] | dict[str, float] | None,
        FileOption('Weight of a row by its class: {CLASS = WEIGHT} or "balanced".'),
    ] = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    needs_cloud: bool = False
    test_rows: int | None = None
    rows: Path | None = None

    @property
    def goal(self) -> dict[str, float]:
        """The goal option that is set, by name; empty if none is set."""
        total_loss, _ = options.loss_option(self.max_loss)
        return options.chosen_goal(
            budget=self.budget, max_loss=total_loss, offload_rate=self.offload_rate
        )

    @property
    def objectives(self) -> dict[str, Any]:
        """Parameters of the method: the goal, the bounds and `parameters`."""
        total_loss, class_losses = options.loss_option(self.max_loss)
        bounds = {
            "min_recall": options.by_class_option("--min-recall", self.min_recall) or None,
            "min_precision": options.by_class_option("--min-precision", self.min_precision) or None,
            "max_bytes": options.bytes_option(self.max_bytes),
            "max_instance_cost": self.max_instance_cost,
            "guarantee": self.guarantee,
            "class_weight": self.class_weight,
        }
        objectives: dict[str, Any] = {**self.goal}
        objectives |= {name: bound for name, bound in bounds.items() if bound is not None}
        if class_losses:
            loss_bounds: dict[str | None, float] = {} if total_loss is None else {None: total_loss}
            objectives["max_loss"] = loss_bounds | class_losses
        return objectives | dict(self.parameters)

    @property
    def columns(self) -> ColumnOptions:
        """Kinds of columns and texts of empty cells."""
        kinds: dict[str, str] = {}
        for column_option in self.column:
            name, separator, kind = column_option.rpartition("=")
            if not separator or name in kinds:
                problem = "the column has two kinds" if separator else "write it as NAME=KIND"
                raise InputError(f"--column {column_option}: {problem}")
            read_kind(kind)
            kinds[name] = kind
        kinds |= dict.fromkeys(self.drop, DROP)
        return ColumnOptions(
            kinds=kinds, impute=self.impute, allow_missing=self.allow_missing, missing_words=self.na
        )

    @property
    def split_columns(self) -> dict[str, str]:
        """Columns of groups and times, by option."""
        columns = {} if self.groups is None else {"--groups": self.groups}
        return columns | ({} if self.time_split is None else {"--time-split": self.split_time[0]})

    @property
    def split_time(self) -> tuple[str, str]:
        """Column of `time_split` and the format of its dates."""
        name, separator, time_format = (self.time_split or "").rpartition("=")
        return (name, time_format) if separator else (time_format, "iso")
