"""Records of blocks and their steps, as a manifest contains them.

::

    {"shape": [128, 3], "dtype": "int16", "blocks": [1], "prices": {"unit": "us", ...},
     "steps": [{"kind": "channels", "name": "acc", "indices": [0, 1, 2], ...},
               {"kind": "statistics", "source": 0}]}

A step refers to its inputs by their numbers, which are below its own number. Settings that equal
their default are left out. The prices of the steps are in the manifest's feature groups, which have
the labels of the steps as names. ``prices`` is the table of the measurement, if the steps were
measured.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from inspect import isabstract
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from gatewise.documents import DocumentError, Meta, Record, Text
from gatewise.errors import InputError
from gatewise.models.instances import DTYPES, MAX_WINDOW_VALUES
from gatewise_signals import steps as base_steps
from gatewise_signals.blocks import block, images, sound, spectra, time_domain
from gatewise_signals.blocks.block import Block
from gatewise_signals.graph import SignalGraph
from gatewise_signals.price_table import PriceTable
from gatewise_signals.signal_input import WINDOW, SignalInput
from gatewise_signals.steps import Step, settings_of

#: Largest number of steps in a document, which limits the memory that a hostile one can take.
MAX_STEPS: Final = 4096
#: Largest number of entries in a setting that is a list.
MAX_ENTRIES: Final = 4096
#: Largest label of a step. A label contains the labels of its inputs, which limits the depth.
MAX_LABEL_BYTES: Final = 1024
#: Largest number in a setting, which float32 can represent.
MAX_REAL: Final = 3.4e38

StepNumber = Annotated[int, Meta(ge=0, lt=MAX_STEPS)]
Whole = Annotated[int, Meta(ge=-MAX_WINDOW_VALUES, le=MAX_WINDOW_VALUES)]
Real = Annotated[float, Meta(ge=-MAX_REAL, le=MAX_REAL)]
Side = Annotated[int, Meta(ge=1, le=MAX_WINDOW_VALUES)]
#: Type with bounds of each plain setting.
_TYPES: Final[dict[Any, Any]] = {int: Whole, float: Real, bool: bool, str: Text}


def _find_step_kinds() -> dict[str, type[Step]]:
    """Map each kind to its class of steps."""
    modules = base_steps, block, time_domain, spectra, sound, images
    classes = [
        step_class
        for module in modules
        for step_class in vars(module).values()
        if isinstance(step_class, type)
    ]
    return {
        step_class.kind: step_class
        for step_class in classes
        if issubclass(step_class, Step) and not isabstract(step_class)
    }


def _find_document_type(hint: Any) -> Any:
    """Get the type of a setting in a document, where a number stands for a step."""
    if get_origin(hint) is tuple:
        tuple_type = tuple.__class_getitem__((_find_document_type(get_args(hint)[0]), ...))
        return Annotated[tuple_type, Meta(max_length=MAX_ENTRIES)]
    return StepNumber if issubclass(hint, Step) else _TYPES[hint]


def _make_record_type(step_class: type[Step]) -> type[msgspec.Struct]:
    """Make the record type for the settings of one kind of step."""
    settings = settings_of(step_class)
    record_fields: list[Any] = []
    for field in fields(step_class):
        if field.name in settings:
            record_field = (field.name, _find_document_type(settings[field.name]))
            record_fields.append(
                record_field if field.default is MISSING else (*record_field, field.default)
            )
    return msgspec.defstruct(
        step_class.__name__,
        record_fields,
        bases=(Record,),
        kw_only=True,
        frozen=True,
        tag_field="kind",
        tag=step_class.kind,
    )


KINDS: Final = _find_step_kinds()
RECORDS: Final = {kind: _make_record_type(step_class) for kind, step_class in KINDS.items()}

# A type checker cannot evaluate a union that is made at run time.
if TYPE_CHECKING:
    StepRecord = msgspec.Struct
else:
    StepRecord = Union[tuple(RECORDS.values())]  # noqa: UP007


class SignalRecord(Record, frozen=True):
    """Shape and type of windows, the steps that read them, and the numbers of the blocks."""

    shape: Annotated[tuple[Side, ...], Meta(min_length=1, max_length=8)]
    dtype: Literal[DTYPES]  # type: ignore[valid-type]
    steps: Annotated[tuple[StepRecord, ...], Meta(min_length=1, max_length=MAX_STEPS)]
    blocks: Annotated[tuple[StepNumber, ...], Meta(min_length=1, max_length=MAX_STEPS)]
    prices: PriceTable | None = None


def make_signal_record(signal: SignalInput) -> SignalRecord:
    """Make the record of a signal input."""
    steps = signal.graph.steps
    number_of_step = {step: number for number, step in enumerate(steps)}

    def record_value(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(record_value(element) for element in value)
        return number_of_step[value] if isinstance(value, Step) else value

    return SignalRecord(
        signal.shape,
        signal.dtype,
        tuple(
            RECORDS[step.kind](
                **{name: record_value(getattr(step, name)) for name in settings_of(type(step))}
            )
            for step in steps
        ),
        tuple(number_of_step[step] for step in signal.graph.blocks),
        signal.prices,
    )


def make_signal_input(record: SignalRecord, feature_names: tuple[str, ...]) -> SignalInput:
    """Make the signal input that a record describes.

    The blocks must compute the features `feature_names`, which may end with ``window`` for the
    values of the window. Raises DocumentError, which names the field, if the record is not valid.
    """

    def document_error(field: str, problem: object) -> DocumentError:
        return DocumentError("", field, str(problem))

    # make the steps, each of which reads steps before it
    steps: list[Step] = []
    for index, step_record in enumerate(record.steps):
        try:
            step = _make_step(step_record, steps)
        except InputError as error:
            raise document_error(f"steps[{index}]", error) from None
        if len(step.label) > MAX_LABEL_BYTES:
            raise document_error(
                f"steps[{index}]", f"has a label of more than {MAX_LABEL_BYTES} bytes"
            )
        steps.append(step)
    # find the blocks among the steps
    blocks: list[Block] = []
    for index, number in enumerate(record.blocks):
        block_step = steps[number] if number < len(steps) else None
        if not isinstance(block_step, Block):
            raise document_error(f"blocks[{index}]", f"step {number} is not a block")
        blocks.append(block_step)
    try:
        graph = SignalGraph(blocks)
    except InputError as error:
        raise document_error("blocks", error) from None
    has_window_values = feature_names == (*graph.feature_names, WINDOW)
    if not has_window_values and graph.feature_names != feature_names:
        raise document_error("blocks", "their features differ from the features of the manifest")
    # check the prices of the steps
    prices = record.prices
    labels = {step.label for step in graph.steps}
    if prices is not None and (prices.shape, set(prices.microseconds)) != (record.shape, labels):
        raise document_error("prices", "are for other steps or windows")
    try:
        return SignalInput(graph, record.shape, record.dtype, has_window_values, prices)
    except InputError as error:
        n_values = math.prod(record.shape)
        is_too_large = has_window_values and n_values > MAX_WINDOW_VALUES
        raise document_error("shape" if is_too_large else "blocks", error) from None


def _make_step(step_record: Any, steps: list[Step]) -> Step:
    """Make a step that reads some of `steps`."""
    step_class = KINDS[str(step_record.__struct_config__.tag)]

    def setting_value(hint: Any, value: Any) -> Any:
        if get_origin(hint) is tuple:
            return tuple(setting_value(get_args(hint)[0], element) for element in value)
        if not issubclass(hint, Step):
            return value
        if value >= len(steps):
            raise InputError(f"reads step {value}, which is not before it")
        return steps[value]

    hints = settings_of(step_class)
    return step_class(
        **{name: setting_value(hint, getattr(step_record, name)) for name, hint in hints.items()}
    )
