"""``gatewise calibrate``: what computations take on this machine, as a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from gatewise.console import emit, note, table
from gatewise.errors import InputError
from gatewise.formats import millis
from gatewise.imports import import_object
from gatewise_export.commands.options import AsJson, BlockFunctions
from gatewise_signals.blocks.block import load_block_functions
from gatewise_signals.graph import SignalGraph
from gatewise_signals.pricing import MEASURED_WINDOWS, price_table
from gatewise_sim.report.output import write_text
from gatewise_sim.signal_handling import exit_on_termination

if TYPE_CHECKING:
    from gatewise_signals.blocks.block import Block

_PRICES: Final = Path("block-prices.json")
_SERVICE: Final = Path("calibration.json")


def calibrate(
    what: Annotated[
        str, typer.Argument(help="A bundle; with --device also module:blocks, a list of blocks.")
    ],
    device: Annotated[
        bool, typer.Option("--device", help="Measure what each step of the blocks takes here.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="Windows, .npy or .npz; by default a bundle's sample. Else rows, as of simulate."
        ),
    ] = None,
    watts: Annotated[
        float | None,
        typer.Option(help="Power of the processor at work: joules beside microseconds."),
    ] = None,
    block: BlockFunctions = None,
    target: Annotated[str | None, typer.Option(help="Column of the rows' label.")] = None,
    broker: Annotated[
        str | None, typer.Option(help="URL of a broker that runs; a new one by default.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(metavar="python:MODULE:ATTRIBUTE|URL", help="What runs the high-cost model."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file: block-prices.json or calibration.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: prices of blocks, or service times for simulations.

    With --device each step of a bundle's blocks, or of a list of blocks, is measured as a device
    computes it, one window at a time; training takes the file:

        gatewise calibrate --device my_blocks:blocks --data windows.npy --watts 2.5
        StagedCascade(blocks=sig.priced(blocks, "block-prices.json"))

    Without it a device, a worker and a broker answer the rows for 15 seconds, and simulate takes
    the file:

        gatewise calibrate bundle --data rows.csv
        gatewise simulate bundle --data rows.csv --calibration calibration.json
    """
    if device:
        if target or broker or backend:
            raise InputError("--target, --broker and --backend are for service times: no --device")
        _prices(what, data, watts, block or [], out or _PRICES, as_json=as_json)
        return
    if watts is not None:
        raise InputError("--watts is for prices of blocks: give --device")
    if data is None:
        raise InputError("service times are measured on rows: give --data")
    files = block or [], broker, backend, out or _SERVICE
    _service_times(what, data, target, *files, as_json=as_json)


commands: dict[str, Callable[..., None]] = {"calibrate": calibrate}


def _prices(
    what: str,
    data: str | None,
    watts: float | None,
    functions: list[str],
    out: Path,
    *,
    as_json: bool,
) -> None:
    """Measure blocks, write their table and show it beside the prices of the bundle."""
    known: tuple[str, Mapping[str, float]] | None = None
    if Path(what).exists() or ":" not in what:
        blocks, windows, known = _of_bundle(what, data, functions)
    else:
        blocks = _named_blocks(what)
        if functions:
            raise InputError("--block is for bundles: these blocks have their functions")
        if data is None:
            raise InputError("--data: give windows of the kind that these blocks compute")
        windows = _windows(data)
    chosen = np.linspace(0, len(windows) - 1, min(len(windows), MEASURED_WINDOWS)).astype(int)
    found = price_table(blocks, windows[chosen], watts=watts)
    document = found.to_document()
    try:
        write_text(out, json.dumps(document, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(f"{out}: {error.strerror or error}") from error
    if as_json:
        emit(document)
        return
    units = ("us",) if watts is None else ("us", "uj")
    rows = [
        (
            step,
            *(f"{figures[unit]:.4g}" for unit in units),
            *([f"{known[1][step]:.4g}"] if known else []),
        )
        for step, figures in document["steps"].items()
    ]
    table(
        f"computed from a window of {' x '.join(map(str, found.shape))}",
        ("step", *units, *([known[0]] if known else [])),
        rows,
    )
    total = sum(found.microseconds.values())
    energy = "" if watts is None else f", {total * watts:.4g} uJ"
    print(f"all steps: {total:.4g} us{energy}, on {found.machine}")
    print(f"written to {out}: sig.priced(blocks, {str(out)!r}) gives blocks these prices")


def _of_bundle(
    path: str, data: str | None, functions: list[str]
) -> tuple[list[Block], NDArray[Any], tuple[str, Mapping[str, float]]]:
    """Blocks of a bundle, windows, and what the bundle says of each step."""
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.onnx_files.graph_rules import check_stage_graph

    bundle = Bundle.open(path, for_device=True)
    if bundle.manifest.signal is None:
        raise InputError(f"{path} has no blocks: its features have the prices that you gave")
    bundle = bundle.with_functions(load_block_functions(functions))
    bundle.read_block_models(check_stage_graph)
    manifest, signal = bundle.manifest, bundle.manifest.signal
    assert signal is not None
    windows = bundle.sample()["windows"] if data is None else signal.checked(_windows(data))
    known: tuple[str, Mapping[str, float]]
    if signal.prices is None:
        known = "price in the bundle", {group.name: group.shared for group in manifest.groups}
    else:
        known = "us in the bundle", signal.prices.microseconds
    return list(signal.graph.blocks), windows.astype(signal.dtype), known


def _named_blocks(path: str) -> list[Block]:
    found = import_object(path, path)
    found = found() if callable(found) else found
    try:
        return list(SignalGraph(list(found)).blocks)
    except TypeError:
        raise InputError(f"{path} is no list of blocks, and no function that gives one") from None


def _windows(data: str) -> NDArray[Any]:
    from gatewise_training.data.instance_files import load_instances

    windows, _ = load_instances(data)
    if not isinstance(windows, np.ndarray) or windows.ndim < 2:
        raise InputError(f"--data {data}: give an array of windows, .npy or .npz")
    return windows


def _service_times(
    path: str,
    data: str,
    target: str | None,
    functions: list[str],
    broker: str | None,
    backend: str | None,
    out: Path,
    *,
    as_json: bool,
) -> None:
    """Measure device, worker and broker in a short live run, write the file and show it."""
    from gatewise_sim.calibration.measuring import calibrate
    from gatewise_sim.experiment.operating_point import open_whole
    from gatewise_sim.experiment.rows import Rows
    from gatewise_sim.report.progress_display import shown_progress

    bundle = open_whole(path, load_block_functions(functions))
    rows = Rows.load(data, bundle.manifest, target=target)
    with exit_on_termination(), shown_progress() as watch:
        found = calibrate(
            bundle.path,
            rows.X,
            broker=broker,
            backend=backend,
            functions=bundle.functions,
            watch=watch,
        )
    found.write(out)
    if as_json:
        emit(found.as_dict())
        return
    first, last, service = found.edge_ms[0], found.edge_ms[-1], found.service
    each = 1000 * (service.base + service.each + service.message)
    print(
        f"the device, until the first stage has answered: {millis(first)}; the last: {millis(last)}"
    )
    print(f"a worker, for a request of one instance: {millis(each)}")
    print(f"the broker, for a message: {millis(found.broker_us / 1000)}")
    note(f"written to {out}: gatewise simulate --calibration {out}")
