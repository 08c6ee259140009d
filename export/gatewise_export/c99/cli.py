"""The sub-commands ``gatewise c99`` and ``calibrate``: a bundle's stages as C99, and its prices."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatewise.console import emit, table
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.commands.options import AsJson, BundlePath

if TYPE_CHECKING:
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_export.c99.layout import Form
    from gatewise_export.c99.writer import CSource


def c99(
    bundle: BundlePath,
    out: Annotated[Path, typer.Option(help="The folder that gets the C files.")],
    coded: Annotated[
        str | None,
        typer.Option(help="Thresholds: ranks of 8 or 16 bits, or float; by default the smallest."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Prefix of public names; by default the bundle's name.")
    ] = None,
    lean: Annotated[
        bool,
        typer.Option(
            "--lean",
            help="Leave out models of stages that never stop, and blocks that only requests read.",
        ),
    ] = False,
    build: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="arduino|zephyr|esp-idf|cmake",
            help="Write a library for this build, with a client of the cloud.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a bundle's device stages as C99, for a microcontroller.

    At the active operating point. No heap, tables in flash, one callback to acquire features;
    decisions equal the bundle's, bit for bit. `make test` in the folder runs the sample. With --as
    the folder is a library that the board's build takes as it is; NAME_wire.h in it encodes
    requests and decodes responses, for instances that no stage answers.

    Example:

        gatewise c99 bundle --out firmware/model

        gatewise c99 bundle --as arduino --out ~/Arduino/libraries/model
    """
    forms: dict[str | None, Form | None] = {None: None, "8": 8, "16": 16, "float": "float"}
    if coded not in forms:
        raise InputError(f"--coded {coded}: choose 8, 16 or float, or leave it out")
    from gatewise_export.c99.board_libraries import write_library
    from gatewise_export.c99.writer import to_c

    opened = Bundle.open(bundle, for_device=True)
    no_client: str | None = None
    if build is None:
        source = to_c(opened, out, coded=forms[coded], name=name, lean=lean)
    else:
        source, no_client = write_library(
            opened, out, build, coded=forms[coded], name=name, lean=lean
        )
    encoded_columns = _encoded_columns(opened.manifest)
    if as_json:
        facts = {
            "bundle": str(bundle),
            "encoded_columns": encoded_columns,
            "no_client": no_client,
        }
        emit(facts | asdict(source))
        return
    table(f"{source.name}.c in {out}", ("", "figure"), _figures(source))
    if build is not None:
        print(f"{out} is a library for {build}: {', '.join(source.files)}")
        if no_client is not None:
            print(f"without {source.name}_wire.h: {no_client}")
        return
    print("the code takes flash as well: `make size` in the folder measures it")
    if encoded_columns:
        print(
            f"the C takes encoded features: the firmware encodes {', '.join(encoded_columns)} as "
            "the manifest's `encoder` says (docs/tables.md)"
        )
    print(f"run the self-test with: make -C {shlex.quote(str(out))} test")


def calibrate(
    bundle: BundlePath,
    out: Annotated[Path, typer.Option(help="The JSON file that gets the prices.")],
    in_c: Annotated[
        bool, typer.Option("--c", help="Run the blocks' generated C, not numpy.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="host|cortex-m0plus|cortex-m4|rv32",
            help="Machine of the C: this computer, or a chip in qemu.",
        ),
    ] = "host",
    mhz: Annotated[float, typer.Option(help="Clock of the chip, in MHz.")] = 64.0,
    watts: Annotated[
        float | None, typer.Option(help="Power of the processor at work, for joules.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Price the blocks of a bundle by the time of each step for one window of its sample.

    With --c the blocks run as the C that a board runs, compiled for this computer or for a chip in
    qemu; an emulator counts instructions, of which the chip is taken to run one per cycle. Without
    --c they run in numpy on this machine, which is right for devices that run Python.
    `gatewise_signals.priced(blocks, FILE)` gives the prices to blocks for the next training.

    Example:

        gatewise calibrate bundle --c --on cortex-m4 --mhz 80 --out block-prices.json
    """
    from gatewise_export.c99.signals.step_timing import price_table_in_c
    from gatewise_signals.pricing import price_table

    opened = Bundle.open(bundle, for_device=True)
    signal = opened.manifest.signal
    windows = opened.sample().get("windows")
    if signal is None or windows is None:
        raise InputError(f"{bundle} computes no features from windows: there is nothing to price")
    if in_c:
        prices = price_table_in_c(signal, windows, target, mhz=mhz, watts=watts)
    elif target == "host":
        prices = price_table(signal.graph.blocks, windows, watts=watts)
    else:
        raise InputError(f"--on {target} needs --c: numpy runs on this machine alone")
    prices.write(out)
    if as_json:
        emit({"out": str(out), "machine": prices.machine, "microseconds": prices.microseconds})
        return
    rows = [(label, f"{us:.1f}") for label, us in prices.microseconds.items()]
    table(f"prices in {out}", ("step", "us"), rows)
    print(f"measured on {prices.windows} windows: {prices.machine}")


commands: dict[str, Callable[..., None]] = {"c99": c99, "calibrate": calibrate}


def _encoded_columns(manifest: Manifest) -> list[str]:
    """Names of raw columns that the firmware must encode."""
    if manifest.encoder is None:
        return []
    return [
        column.name
        for column in manifest.encoder.columns
        if (column.name,) != column.features or column.kind != "number"
    ]


def _figures(source: CSource) -> list[tuple[str, object]]:
    """Lines of the printed table."""
    figures: list[tuple[str, object]] = [
        ("stages on the device", source.n_stages),
        ("features they may acquire", f"{source.n_slots} of {source.n_features}"),
        ("classes", source.n_classes),
        ("thresholds", "float" if source.coded is None else f"{source.coded}-bit ranks"),
        ("flash, bytes of tables", source.flash_bytes),
        ("RAM, bytes", source.ram_bytes),
        ("stack, bytes at most", source.stack_bytes),
        ("rows in the self-test", f"{source.sample_rows} of the sample, {source.made_rows} made"),
    ]
    blocks = source.signals
    if blocks is not None:
        figures += [
            ("steps of blocks", blocks.n_steps),
            ("their part of the flash", blocks.table_bytes),
            ("their part of the RAM", blocks.struct_bytes),
            ("windows in the self-test", blocks.sample_windows),
        ]
    return figures
