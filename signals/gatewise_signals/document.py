"""Blocks as a JSON document, and back: plain settings, read as strictly as the rest of a manifest.

::

    {"shape": [128, 3], "dtype": "int16", "blocks": [1], "prices": {"unit": "us", ...},
     "steps": [{"kind": "channels", "name": "acc", "indices": [0, 1, 2], ...},
               {"kind": "statistics", "source": 0}]}

A step names the steps that it reads by their number, each below its own. Prices stand with the
feature groups, which bear the steps' labels; ``prices``, if it is there, says where and in which
unit they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from inspect import isabstract
from typing import Any, Final, get_args, get_origin

from gatewise.documents.json_reader import JsonField
from gatewise.errors import InputError
from gatewise.models.instances import DTYPES, MOST_VALUES, MOST_WINDOW_VALUES
from gatewise_signals import steps as first_steps
from gatewise_signals.blocks import block, images, sound, spectra, time_domain
from gatewise_signals.blocks.block import Block
from gatewise_signals.graph import SignalGraph
from gatewise_signals.price_table import PriceTable, PriceUnit
from gatewise_signals.signal_input import WINDOW, SignalInput
from gatewise_signals.steps import Step, later_settings, settings_of

MOST_STEPS: Final = 4096
MOST_ENTRIES: Final = 4096
"""Of a setting that is a list."""
MOST_LABEL_BYTES: Final = 1024
"""A step's label holds those of the steps that it reads, so that this bounds how deep they are."""
LARGEST: Final = 3.4e38


def write_signal(signal: SignalInput) -> dict[str, Any]:
    """Make the JSON document of blocks and of the windows that they take."""
    steps = signal.graph.steps
    number = {step: i for i, step in enumerate(steps)}

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return number[value] if isinstance(value, Step) else value

    return {
        "shape": list(signal.shape),
        "dtype": signal.dtype,
        "steps": [
            {"kind": s.kind} | {name: plain(getattr(s, name)) for name in _written(s)}
            for s in steps
        ],
        "blocks": [number[block] for block in signal.graph.blocks],
        **({} if signal.prices is None else {"prices": _write_prices(signal.prices, steps)}),
    }


def _written(step: Step) -> list[str]:
    """Settings that a document has: those that came later not at their default."""
    later = later_settings(type(step))
    return [
        name
        for name in settings_of(type(step))
        if name not in later or getattr(step, name) != getattr(type(step), name)
    ]


def _write_prices(table: PriceTable, steps: Sequence[Step]) -> dict[str, Any]:
    return {
        "unit": table.unit,
        "machine": table.machine,
        "windows": table.windows,
        "watts": table.watts,
        "microseconds": [table.microseconds[step.label] for step in steps],
    }


def _read_prices(field: JsonField, steps: list[Step], shape: tuple[int, ...]) -> PriceTable:
    field.keys(("unit", "machine", "windows", "watts", "microseconds"))
    times = [t.number(0.0, LARGEST) for t in field["microseconds"].items(len(steps), len(steps))]
    watts = field.get("watts")
    try:
        return PriceTable(
            {step.label: time for step, time in zip(steps, times, strict=True)},
            shape,
            field["machine"].text(),
            field["windows"].integer(1, MOST_VALUES),
            None if watts is None else watts.number(0.0, LARGEST),
            field["unit"].choice(get_args(PriceUnit)),
        )
    except InputError as error:
        field.fail(str(error))


def read_signal(field: JsonField, feature_names: tuple[str, ...]) -> SignalInput:
    """Read such a document; its blocks must give the features named, in their order.

    Behind these, ``window`` may stand for the window's own values.
    """
    field.keys(("shape", "dtype", "steps", "blocks"), ("prices",))
    shape = tuple(d.integer(1, MOST_WINDOW_VALUES) for d in field["shape"].items(1, 8))
    steps: list[Step] = []
    for item in field["steps"].items(1, MOST_STEPS):
        steps.append(_read_step(item, steps))
    blocks: list[Block] = []
    for item in field["blocks"].items(1, MOST_STEPS):
        step = steps[item.integer(0, len(steps) - 1)]
        if not isinstance(step, Block):
            item.fail(f"{step.label} is no block")
        blocks.append(step)
    try:
        graph = SignalGraph(blocks)
    except InputError as error:
        field["blocks"].fail(str(error))
    raw = feature_names == (*graph.feature_names, WINDOW)
    if not raw and graph.feature_names != feature_names:
        field["blocks"].fail("their features are not those of the manifest, in its order")
    given = field.get("prices")
    prices = None if given is None else _read_prices(given, steps, shape)
    try:
        return SignalInput(graph, shape, field["dtype"].choice(DTYPES), raw, prices)
    except InputError as error:
        field["shape"].fail(str(error))


def _read_step(field: JsonField, before: list[Step]) -> Step:
    cls = _kinds()[field["kind"].choice(tuple(_kinds()))]
    hints, later = settings_of(cls), later_settings(cls)
    field.keys(("kind", *(name for name in hints if name not in later)), tuple(later))
    given = {name: f for name in hints if (f := field.get(name)) is not None}
    try:
        step = cls(**{name: _read_setting(f, hints[name], before) for name, f in given.items()})
    except InputError as error:
        field.fail(str(error))
    if len(step.label) > MOST_LABEL_BYTES:
        field.fail(f"has a label of more than {MOST_LABEL_BYTES} bytes")
    return step


def _read_setting(field: JsonField, hint: Any, before: list[Step]) -> Any:
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return tuple(_read_setting(f, item, before) for f in field.items(0, MOST_ENTRIES))
    if isinstance(hint, type) and issubclass(hint, Step):
        return before[field.integer(0, len(before) - 1)]
    if hint is int:
        return field.integer(-MOST_WINDOW_VALUES, MOST_WINDOW_VALUES)
    if hint is bool:
        return bool(field.integer(0, 1))
    return field.number(-LARGEST, LARGEST) if hint is float else field.text()


@cache
def _kinds() -> dict[str, type[Step]]:
    """Steps of this package by their kind."""
    modules = first_steps, block, time_domain, spectra, sound, images
    classes = [c for module in modules for c in vars(module).values() if isinstance(c, type)]
    return {c.kind: c for c in classes if issubclass(c, Step) and not isabstract(c)}
