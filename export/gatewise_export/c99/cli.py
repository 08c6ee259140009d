"""The sub-commands ``gatewise c99``, which writes a bundle as C99, and ``gatewise calibrate``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatewise.console import emit, print_table
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.commands.options import AsJson, BlockFunctions, BundlePath
from gatewise_signals.blocks.block import load_block_functions

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_export.c99.layout import ThresholdForm
    from gatewise_export.c99.writer import CSource


def c99(
    bundle: BundlePath,
    out: Annotated[Path, typer.Option(help="Folder for the C files.")],
    coded: Annotated[
        str | None,
        typer.Option(
            metavar="8|16|float",
            help="Form of thresholds: ranks of 8 or 16 bits, or float; by default the smallest.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Prefix of public C names; by default the bundle's name.")
    ] = None,
    lean: Annotated[
        bool,
        typer.Option(
            "--lean",
            help="Omit the models of stages that never stop, and blocks that only requests read.",
        ),
    ] = False,
    build_system: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="arduino|zephyr|esp-idf|cmake",
            help="Build system to write a library for, with a client of the cloud.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a bundle's device stages as C99 for a microcontroller.

    The C runs the active operating point. It uses no heap, keeps its tables in flash, acquires
    features through one callback, and decides exactly as the bundle. `make test` in the folder
    runs the sample. With --as the folder is a library for the board's build system, and its
    NAME_wire.h encodes requests and decodes responses for instances that are offloaded.

    Examples:

        gatewise c99 bundle --out firmware/model
        gatewise c99 bundle --as arduino --out ~/Arduino/libraries/model
    """
    forms: dict[str | None, ThresholdForm | None] = {None: None, "8": 8, "16": 16, "float": "float"}
    if coded not in forms:
        raise InputError(f"--coded {coded}: choose 8, 16 or float, or omit the option")
    from gatewise_export.c99.board_libraries import write_library
    from gatewise_export.c99.writer import to_c

    opened_bundle = Bundle.open(bundle, for_device=True)
    no_client_reason: str | None = None
    if build_system is None:
        c_source = to_c(opened_bundle, out, coded=forms[coded], name=name, lean=lean)
    else:
        c_source, no_client_reason = write_library(
            opened_bundle, out, build_system, coded=forms[coded], name=name, lean=lean
        )
    encoded_columns = _encoded_columns(opened_bundle.manifest)
    if as_json:
        document = {
            "bundle": str(bundle),
            "encoded_columns": encoded_columns,
            "no_client": no_client_reason,
        }
        emit(document | asdict(c_source))
        return
    print_table(f"{c_source.name}.c in {out}", ("", "figure"), _size_rows(c_source))
    if build_system is not None:
        print(f"wrote a library for {build_system} to {out}: {', '.join(c_source.files)}")
        if no_client_reason is not None:
            print(f"it has no {c_source.name}_wire.h, because {no_client_reason}")
    else:
        print("the code also takes flash: `make size` in the folder measures it")
        print(f"run the self-test with: make -C {shlex.quote(str(out))} test")
    if encoded_columns:
        print(
            f"the C reads encoded features: the firmware must encode {', '.join(encoded_columns)} "
            "as the manifest's `encoder` defines (docs/tables.md)"
        )


def calibrate(
    bundle: BundlePath,
    out: Annotated[Path, typer.Option(help="JSON file for the prices.")],
    in_c: Annotated[
        bool, typer.Option("--c", help="Time the blocks' generated C instead of numpy.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="host|cortex-m0plus|cortex-m4|rv32",
            help="Machine that runs the C: this computer, or a chip in qemu.",
        ),
    ] = "host",
    mhz: Annotated[float, typer.Option(help="Clock of the chip in MHz.")] = 64.0,
    watts: Annotated[
        float | None, typer.Option(help="Power of the busy processor in W, to price in joules.")
    ] = None,
    block: BlockFunctions = None,
    as_json: AsJson = False,
) -> None:
    """Measure the time that each step of a bundle's blocks takes for one window.

    With --c the blocks run as the C that a board runs, compiled for this computer or a chip in
    qemu. An emulator counts instructions, and the price assumes one instruction per cycle. Without
    --c the blocks run in numpy on this machine, which suits devices that run Python.
    `gatewise_signals.priced(blocks, FILE)` gives the prices to blocks for the next training.

    Example:

        gatewise calibrate bundle --c --on cortex-m4 --mhz 80 --out block-prices.json
    """
    from gatewise_export.c99.signals.step_timing import measure_c_prices
    from gatewise_signals.pricing import price_table

    opened_bundle = Bundle.open(bundle, for_device=True)
    if not in_c:
        opened_bundle = opened_bundle.with_functions(load_block_functions(block or ()))
        opened_bundle.read_block_models()
    signal = opened_bundle.manifest.signal
    windows = opened_bundle.sample().get("windows")
    if signal is None or windows is None:
        raise InputError(f"{bundle} has no blocks to price: its features are not of windows")
    if in_c:
        prices = measure_c_prices(signal, windows, target, mhz=mhz, watts=watts)
    elif target == "host":
        prices = price_table(signal.graph.blocks, windows, watts=watts)
    else:
        raise InputError(f"--on {target} needs --c, because numpy runs only on this machine")
    prices.write(out)
    if as_json:
        emit({"out": str(out), "machine": prices.machine, "microseconds": prices.microseconds})
        return
    rows = [(label, f"{microseconds:.1f}") for label, microseconds in prices.microseconds.items()]
    print_table(f"prices in {out}", ("step", "us"), rows)
    print(f"measured with {prices.windows} windows on {prices.machine}")


def _encoded_columns(manifest: Manifest) -> list[str]:
    """Names of raw columns that the firmware must encode."""
    if manifest.encoder is None:
        return []
    return [
        column.name
        for column in manifest.encoder.columns
        if (column.name,) != column.features or column.kind != "number"
    ]


def _size_rows(c_source: CSource) -> list[tuple[str, object]]:
    """Name and value of each line of the printed table."""
    size_rows: list[tuple[str, object]] = [
        ("stages on the device", c_source.n_stages),
        ("features that stages may acquire", f"{c_source.n_slots} of {c_source.n_features}"),
        ("classes", c_source.n_classes),
        ("thresholds", "float" if c_source.coded is None else f"{c_source.coded}-bit ranks"),
        ("flash for tables, bytes", c_source.flash_bytes),
        ("RAM, bytes", c_source.ram_bytes),
        ("stack, bytes at most", c_source.stack_bytes),
    ]
    # A library has no self-test.
    has_self_test = f"{c_source.name}_selftest.c" in c_source.files
    if has_self_test:
        rows_text = f"{c_source.sample_rows} of the sample, {c_source.made_rows} generated"
        size_rows.append(("rows in the self-test", rows_text))
    signals = c_source.signals
    if signals is not None:
        size_rows += [
            ("steps of blocks", signals.n_steps),
            ("flash for blocks, bytes", signals.table_bytes),
            ("RAM for blocks, bytes", signals.struct_bytes),
        ]
        if has_self_test:
            size_rows.append(("windows in the self-test", signals.sample_windows))
    return size_rows
