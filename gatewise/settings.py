"""Records of settings that become options of a command or entries of a TOML file.

A field with a :class:`typer.Option` or :class:`typer.Argument` in its annotation is an option of
the command, and can also be set in ``--settings FILE.toml``, which the command has if a field has a
:class:`FileOption`. Such a field can only be set in that file. A field without such a mark can only
be set in Python, and is not checked. Types have bounds as in :mod:`gatewise.documents`.

::

    class FleetSettings(Settings):
        devices: Annotated[int, Meta(ge=1, le=64), typer.Option(help="Devices.")] = 4
        queue: Annotated[int, Meta(ge=1), FileOption("Largest number of queued requests.")] = 1024

    @with_options
    def simulate(settings: FleetSettings, as_json: AsJson = False) -> None:
        ...
"""

from __future__ import annotations

import inspect
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.models import ArgumentInfo, ParameterInfo

from gatewise.documents import DocumentError, convert, parse_toml

#: Width of a help text without its indent, so that lines fit into 80 columns.
_HELP_WIDTH: Final = 76

T = TypeVar("T", bound="Settings")
Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True)
class FileOption:
    """Mark of a field that can only be set in ``--settings FILE.toml``, with its help text."""

    help: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of settings; an InputError for an invalid value names the setting."""

    def __post_init__(self) -> None:
        for name, (hint, _) in _find_marked_fields(type(self)).items():
            convert(getattr(self, name), hint, field=name)


@cache
def _find_marked_fields(settings_class: type) -> dict[str, tuple[Any, ParameterInfo | FileOption]]:
    """Map each field with a mark to its type and mark."""
    fields = {}
    for name, hint in get_type_hints(settings_class, include_extras=True).items():
        for mark in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(mark, ParameterInfo | FileOption):
                fields[name] = (hint, mark)
    return fields


def file_settings(settings_class: type[Settings]) -> list[str]:
    """List the fields that can only be set in ``--settings FILE.toml``."""
    marks = _find_marked_fields(settings_class)
    return [name for name, (_, mark) in marks.items() if isinstance(mark, FileOption)]


def with_options(command: Command) -> Command:
    """Decorate a command so that the fields of its settings become options.

    Values on the command line take precedence over values in ``--settings``, and these take
    precedence over defaults.
    """
    # replace each settings parameter by the options of its fields
    signature = inspect.signature(command, eval_str=True)
    settings_classes = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Settings)
    }
    own_parameters = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
    ]
    parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for settings_class in settings_classes.values():
        parameters += _make_parameters(settings_class)
    parameters += [
        parameter for parameter in own_parameters if parameter.name not in settings_classes
    ]
    file_help_texts = _find_file_only_settings(settings_classes.values())
    if file_help_texts:
        parameters.append(_SETTINGS_FILE)

    @wraps(command)
    def run(context: typer.Context, settings_file: Path | None = None, **options: Any) -> None:
        stated_names = _list_stated_options(context, options)
        entries = _read_entries(settings_file, settings_classes.values())
        settings_by_name: dict[str, Any] = {}
        for name, settings_class in settings_classes.items():
            option_values = {
                key: options.pop(key)
                for key in _find_marked_fields(settings_class)
                if key in options
            }
            stated_values = {
                key: value for key, value in option_values.items() if key in stated_names
            }
            settings_by_name[name] = make_settings(
                settings_class, stated_values, entries, str(settings_file)
            )
        command(**settings_by_name, **options)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = (inspect.getdoc(command) or "") + _write_file_help(file_help_texts)
    return run  # type: ignore[return-value]


def _list_stated_options(context: typer.Context, options: Iterable[str]) -> set[str]:
    """List the options that are on the command line; the others have their defaults."""
    return {
        name
        for name in options
        if (source := context.get_parameter_source(name)) is not None
        and not source.name.startswith("DEFAULT")
    }


def _read_entries(
    settings_file: Path | None, settings_classes: Iterable[type[Settings]]
) -> dict[str, Any]:
    """Read the entries of a settings file; DocumentError for one that is not a setting."""
    if settings_file is None:
        return {}
    entries = parse_toml(settings_file, str(settings_file))
    setting_names = [
        name for settings_class in settings_classes for name in _find_marked_fields(settings_class)
    ]
    for key in entries:
        if key not in setting_names:
            problem = f"is not a setting; the settings are {', '.join(setting_names)}"
            raise DocumentError(str(settings_file), key, problem)
    return entries


def make_settings(
    settings_class: type[T],
    options: Mapping[str, Any],
    entries: Mapping[str, Any] = {},
    file: str = "",
) -> T:
    """Make settings from the `options` of a command and the `entries` of a file.

    Options take precedence over entries.
    """
    field_values = {}
    for name, (hint, mark) in _find_marked_fields(settings_class).items():
        if name in options:
            field_values[name] = convert(options[name], hint, option_name(name, mark))
        elif name in entries:
            field_values[name] = convert(entries[name], hint, file, name)
    return settings_class(**field_values)


def option_name(name: str, mark: object) -> str:
    """Return the name of a field as an option or argument."""
    # typer stores the first name of an annotated option as its default
    option_names = (getattr(mark, "default", None), *(getattr(mark, "param_decls", None) or ()))
    long_names = [word for word in option_names if isinstance(word, str) and word.startswith("--")]
    long_name = long_names[0].partition("/")[0] if long_names else "--" + name.replace("_", "-")
    return name.upper() if isinstance(mark, ArgumentInfo) else long_name


def option_words(
    settings: Settings,
    always_written: Collection[str] = (),
    replacement_texts: Mapping[str, str] | None = None,
) -> list[str]:
    """Write settings as words of a command line.

    Settings that equal their default are left out, unless `always_written` names them.
    `replacement_texts` replace the values of some settings, for example a URL that contains a
    password.
    """
    defaults = {field.name: field.default for field in msgspec.structs.fields(settings)}
    words = []
    for name, (_, mark) in _find_marked_fields(type(settings)).items():
        value = getattr(settings, name)
        if isinstance(mark, FileOption) or (value == defaults[name] and name not in always_written):
            continue
        option = option_name(name, mark)
        # a flag has no value
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
            continue
        for element in value if isinstance(value, tuple) else (value,):
            text = f"{element:.12g}" if isinstance(element, float) else str(element)
            text = shlex.quote((replacement_texts or {}).get(name, text))
            words += [text] if isinstance(mark, ArgumentInfo) else [option, text]
    return words


_SETTINGS_FILE: Final = Parameter(
    "settings_file",
    Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE.toml", help="File with settings by name."),
    ],
)


def _make_parameters(settings_class: type[Settings]) -> list[Parameter]:
    """Make parameters of a command for the fields that are options."""
    plain_types = get_type_hints(settings_class)
    fields = {field.name: field for field in msgspec.structs.fields(settings_class)}
    parameters = []
    for name, (_, mark) in _find_marked_fields(settings_class).items():
        if isinstance(mark, FileOption):
            continue
        field = fields[name]
        default: Any = Parameter.empty if field.default is msgspec.NODEFAULT else field.default
        option_type: Any = plain_types[name]
        # a tuple of any length becomes a repeated option, which typer reads as a list
        if get_origin(option_type) is tuple and get_args(option_type)[1:] == (...,):
            option_type = list.__class_getitem__(get_args(option_type)[0])
            default = list(default)
        annotation = Annotated[option_type, mark]
        parameters.append(
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return parameters


def _find_file_only_settings(settings_classes: Iterable[type[Settings]]) -> dict[str, str]:
    """Map the settings that can only be set in a file to their help texts."""
    marks = {
        name: mark
        for settings_class in settings_classes
        for name, (_, mark) in _find_marked_fields(settings_class).items()
    }
    return {name: mark.help for name, mark in marks.items() if isinstance(mark, FileOption)}


def _write_file_help(help_texts: Mapping[str, str]) -> str:
    """Write the paragraph of a command's help about settings that can only be set in a file."""
    if not help_texts:
        return ""
    width = max(map(len, help_texts))
    lines = [
        textwrap.fill(
            text,
            _HELP_WIDTH,
            # the texts begin in one column: 4 spaces, the longest name, 2 spaces
            initial_indent=f"    {name:{width}}  ",
            subsequent_indent=" " * (width + 6),
        )
        for name, text in help_texts.items()
    ]
    return "\n\n".join(["", "Only in --settings FILE.toml:", "\n".join(lines)])
