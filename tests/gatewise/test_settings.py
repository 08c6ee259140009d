"""Settings from a command line, a file and Python, and the help that lists them."""

import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from gatewise.documents import Meta, Positive
from gatewise.errors import InputError
from gatewise.settings import FileOption, Settings, option_words, with_options


class FleetSettings(Settings):
    bundle: Annotated[Path, typer.Argument(help="Bundle.")]
    devices: Annotated[int, Meta(ge=1, le=64), typer.Option(help="Devices.")] = 4
    link: Annotated[Literal["wifi", "4g"], typer.Option(help="Link.")] = "wifi"
    budget: Annotated[Positive | None, typer.Option(help="Mean cost.")] = None
    column: Annotated[tuple[str, ...], typer.Option(help="Column; repeated.")] = ()
    breaker: Annotated[bool, typer.Option(help="Breaks from a silent cloud.")] = True
    seconds: Annotated[float, typer.Option("--time", help="Time, in s.")] = 3600.0
    queue: Annotated[int, Meta(ge=1), FileOption("Requests in a queue.")] = 1024
    policy: object = None


class OneSetting(Settings):
    name: Annotated[str, typer.Option(help="Name.")] = "x"


def run_command(*arguments, settings_class=FleetSettings):
    """Run a command; return the record and the flag that it gets, and its standard output."""
    recorded_calls = []

    def command(
        settings: FleetSettings, as_json: Annotated[bool, typer.Option("--json")] = False
    ) -> None:
        """Do something."""
        recorded_calls.append((settings, as_json))

    # typer reads the annotation of the parameter, which is written only for one class
    command.__annotations__["settings"] = settings_class
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(with_options(command))
    cli_result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if cli_result.exception and not isinstance(cli_result.exception, SystemExit):
        raise cli_result.exception
    return (recorded_calls[0] if recorded_calls else None), cli_result.output


def test_options_become_a_record():
    arguments = ("--devices", 5, "--link", "4g", "--budget", 2, "--column", "x", "--column", "y")
    (settings, as_json), _ = run_command("b", *arguments, "--no-breaker", "--time", 9, "--json")
    assert as_json
    assert settings == FleetSettings(
        bundle=Path("b"), devices=5, link="4g", budget=2.0, column=("x", "y"), breaker=False,
        seconds=9.0,
    )  # fmt: skip
    assert run_command("b")[0] == (FleetSettings(bundle=Path("b")), False)


def test_the_command_line_precedes_the_file_and_the_file_precedes_defaults(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('devices = 7\nqueue = 3\nlink = "4g"\n')
    (settings, _), _ = run_command("b", "--settings", path, "--devices", 4)
    assert settings == FleetSettings(bundle=Path("b"), devices=4, queue=3, link="4g")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", 65), "--devices: must be a whole number of at most 64, not 65"),
        (("--budget", 0), "--budget: must be a number above 0, not 0.0"),
        (("--budget", "nan"), "--budget: must be a number above 0, not NaN"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_option(arguments, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run_command("b", *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queue = 0", "queue: must be a whole number of at least 1, not 0"),
        ("policy = 0", "policy: is not a setting; the settings are bundle, devices"),
        ("link = '5g'", "link: must be '4g' or 'wifi', not \"5g\""),
    ],
)
def test_an_invalid_value_in_a_file_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}"):
        run_command("b", "--settings", path)


def test_help_lists_options_and_settings_of_the_file():
    _, help_text = run_command("--help")
    assert "--time <float>" in help_text
    assert "Only in --settings FILE.toml:" in help_text
    assert "queue  Requests in a queue." in help_text
    assert "--queue" not in help_text
    assert "policy" not in help_text
    assert "--settings" not in run_command("--help", settings_class=OneSetting)[1]


def test_a_record_checks_its_values_in_python():
    with pytest.raises(InputError, match=r"^devices: must be a whole number of at least 1, not 0"):
        FleetSettings(bundle=Path("b"), devices=0)


def test_settings_are_written_as_the_words_of_a_command_line():
    settings = FleetSettings(
        bundle=Path("a b"), column=("x", "y z"), breaker=False, seconds=0.1, queue=7
    )
    expected_words = "'a b' --link wifi --column x --column 'y z' --no-breaker --time 0.1"
    assert " ".join(option_words(settings, always_written=("link",))) == expected_words
    words = option_words(OneSetting(name="secret"), replacement_texts={"name": "***"})
    assert words == ["--name", "'***'"]
