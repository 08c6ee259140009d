"""The ``gatewise`` command, which imports a sub-command only when it is called.

``gatewise --help`` imports none of the packages, and ``gatewise edge`` imports only the edge. The
command therefore starts on a device that has neither scikit-learn nor LightGBM. Exit status::

    0    success
    1    unexpected error, or a failed check
    2    invalid input; one line states the problem and its remedy
    130  Ctrl-C; 128 + the signal's number for SIGTERM and SIGHUP
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gatewise.errors import GatewiseError, find_interruption, not_installed

#: End of ``gatewise --help``; \\b preserves the line breaks of the next paragraph.
EXAMPLES = """\
Examples:

\b
  gatewise demo                   train, deploy, measure: demo-out/report.html
  gatewise simulate demo-out/bundle --data demo-out/instances.csv
  gatewise train data.csv --target label --out bundle
  gatewise edge bundle --broker mqtt://localhost --data bundle-test.csv
"""


@dataclass(frozen=True)
class Subcommand:
    """Sub-command: its function or group as ``module:name``, its help text and its pip extra."""

    path: str
    help: str
    extra: str


SUBCOMMANDS: dict[str, Subcommand] = {
    "demo": Subcommand(
        "gatewise_sim.experiment.demo_command:demo",
        "Run the whole system on demo data and report the results.",
        "sim",
    ),
    "simulate": Subcommand(
        "gatewise_sim.experiment.simulate_command:simulate",
        "Simulate a fleet's accuracy, cost and latency.",
        "sim",
    ),
    "simulate loop": Subcommand(
        "gatewise_sim.loop.loop_command:simulate_days",
        "Simulate a fleet that learns, day by day.",
        "sim",
    ),
    "init": Subcommand(
        "gatewise_export.commands.init_cli:init",
        "Write a price file for a table, to be edited.",
        "export",
    ),
    "train": Subcommand(
        "gatewise_export.commands.train_cli:train",
        "Train a cascade on a table and pack it as a bundle.",
        "export",
    ),
    "pair": Subcommand(
        "gatewise_export.commands.pair_cli:pair",
        "Choose a threshold between two trained models and pack a bundle.",
        "export",
    ),
    "outcomes": Subcommand(
        "gatewise_export.commands.outcomes_cli:outcomes",
        "Find thresholds from a table of outcomes.",
        "export",
    ),
    "frontier": Subcommand(
        "gatewise_export.commands.bundle_cli:frontier", "Show the accuracy-cost frontier.", "export"
    ),
    "inspect": Subcommand(
        "gatewise_export.commands.bundle_cli:inspect", "Show the contents of a bundle.", "edge"
    ),
    "verify": Subcommand(
        "gatewise_export.commands.bundle_cli:verify",
        "Compare a bundle's decisions with the model's.",
        "export",
    ),
    "c99": Subcommand(
        "gatewise_export.c99.cli:c99", "Write a bundle's stages as C99 source.", "export"
    ),
    "calibrate": Subcommand(
        "gatewise_export.c99.cli:calibrate",
        "Measure the times of a bundle's blocks as prices.",
        "export",
    ),
    "pack": Subcommand(
        "gatewise_export.commands.bundle_cli:pack",
        "Copy a bundle into one file, signed or for devices.",
        "edge",
    ),
    "repo": Subcommand(
        "gatewise_cloud.service.repo_cli:app", "Publish releases that devices update to.", "cloud"
    ),
    "edge": Subcommand("gatewise_edge.service.cli:edge", "Run a device that answers rows.", "edge"),
    "edge enrol": Subcommand(
        "gatewise_edge.service.enrol_cli:enrol", "Get a device's certificate with a token.", "edge"
    ),
    "cloud": Subcommand("gatewise_cloud.service.cli:cloud", "Run a cloud worker.", "cloud"),
    "serve": Subcommand(
        "gatewise_cloud.http.serve_cli:serve", "Serve a bundle's cascade over HTTP.", "serve"
    ),
    "broker": Subcommand(
        "gatewise_cloud.service.broker_cli:app",
        "Run a broker, or write its configuration.",
        "cloud",
    ),
    "labels": Subcommand(
        "gatewise_export.commands.labels_cli:app",
        "Choose kept instances for people to label.",
        "parquet",
    ),
    "monitor": Subcommand(
        "gatewise_export.commands.monitor_cli:monitor_archive",
        "Estimate the true accuracy from labels.",
        "parquet",
    ),
    "refit": Subcommand(
        "gatewise_export.commands.refit_cli:refit", "Train a release on kept instances.", "export"
    ),
    "report": Subcommand(
        "gatewise_sim.report.report_command:report",
        "Show a report, or compare several in one table.",
        "sim",
    ),
    "doctor": Subcommand(
        "gatewise_sim.doctor.cli:doctor", "Check an installation, a broker or a device.", "edge"
    ),
}


class _Root(TyperGroup):
    """Command group that builds a command only when it is called."""

    # Any, because typer does not export the types of its contexts.

    def list_commands(self, context: object) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, context: object, cmd_name: str) -> Any:
        return build_command(cmd_name) if cmd_name in SUBCOMMANDS else None

    def resolve_command(self, context: Any, words: list[str]) -> Any:
        if (two_words := " ".join(words[:2])) in SUBCOMMANDS:
            words = [two_words, *words[2:]]
        if words[0] not in SUBCOMMANDS and not words[0].startswith("-"):
            close_matches = get_close_matches(words[0], SUBCOMMANDS, n=1)
            hint = f", did you mean {close_matches[0]!r}?" if close_matches else ""
            context.fail(f"no command {words[0]!r}{hint}")
        return super().resolve_command(context, words)

    def format_commands(self, context: object, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, subcommand.help) for name, subcommand in SUBCOMMANDS.items()]
            )


def build_command(name: str) -> Any:
    """Build the typer command with this name, which is a key of :data:`SUBCOMMANDS`."""
    subcommand = SUBCOMMANDS[name]
    module_name, attribute = subcommand.path.split(":")
    try:
        command: Any = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise not_installed(error, subcommand.extra) from error
    if isinstance(command, typer.Typer):  # a group of commands
        for command_info in command.registered_commands:
            command_info.help = _preserve_examples(inspect.getdoc(command_info.callback) or "")
        return typer.main.get_command(command)
    function: Callable[..., Any] = command
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, help=_preserve_examples(inspect.getdoc(function) or subcommand.help))(
        function
    )
    return typer.main.get_command(app)


def _preserve_examples(text: str) -> str:
    """Mark indented paragraphs so that the help formatter does not wrap them."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        is_indented = any(line.startswith(" ") for line in paragraph.splitlines())
        needs_mark = is_indented and not paragraph.startswith("\b")
        paragraphs.append(f"\b\n{paragraph}" if needs_mark else paragraph)
    return "\n\n".join(paragraphs)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from gatewise import __version__

        print(f"gatewise {__version__}")
        raise typer.Exit


def _root_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback on errors (anywhere on the line).")
    ] = False,
) -> None:
    """Cost-aware classification across edge and cloud.

    Low-cost models on the device answer most instances. The device sends the hard ones over MQTT
    to the high-cost model in the cloud.
    """


#: Exit status after Ctrl-C, the same as Typer's.
INTERRUPTED_STATUS = 130


def _make_app() -> Any:
    app = typer.Typer(
        cls=_Root,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
        epilog=EXAMPLES,
    )
    app.callback()(_root_command)
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    # remove --debug, which may stand anywhere before "--"
    options_end = words.index("--") if "--" in words else len(words)
    shows_traceback = "--debug" in words[:options_end]
    words = [word for index, word in enumerate(words) if index >= options_end or word != "--debug"]
    # onnxruntime sends telemetry unless this is set before its import
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        exit_status = _make_app().main(words, prog_name="gatewise", standalone_mode=False)
        exit_status = exit_status if isinstance(exit_status, int) else 0
    except KeyboardInterrupt:
        exit_status = INTERRUPTED_STATUS
    except Exception as error:
        if not isinstance(find_interruption(error), KeyboardInterrupt):
            if shows_traceback:
                raise
            return _print_error(error, words)
        exit_status = INTERRUPTED_STATUS
    if exit_status == INTERRUPTED_STATUS:
        print("gatewise: interrupted", file=sys.stderr)
    return exit_status


def _print_error(error: Exception, words: Sequence[str]) -> int:
    """Print one line about an error and return the exit status."""
    command_name = next((word for word in words if word in SUBCOMMANDS), None)
    if isinstance(error, ModuleNotFoundError):
        error = not_installed(error, SUBCOMMANDS[command_name].extra if command_name else "sim")
    if isinstance(error, GatewiseError):
        message = str(error)
        exit_status = 2
    elif isinstance(error, typer.TyperException):  # the command line itself is wrong
        command = f"gatewise {command_name}" if command_name else "gatewise"
        # the context knows the whole path of a command such as `gatewise labels add`
        context = getattr(error, "ctx", None)
        command = command if context is None else context.command_path
        message = f"{error.format_message()} (see `{command} --help`)"
        exit_status = error.exit_code
    elif isinstance(error, OSError) and error.strerror is not None:
        file_prefix = "" if error.filename is None else f"{error.filename}: "
        message = f"{file_prefix}{error.strerror}"
        exit_status = 2
    else:
        message = f"unexpected {type(error).__name__}: {error}; run with --debug for a traceback"
        exit_status = 1
    print("gatewise: " + " ".join(message.split()), file=sys.stderr)
    return exit_status
