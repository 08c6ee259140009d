"""Settings as options of a command, and as the words of a command line."""

from __future__ import annotations

import ast
import inspect
import shlex
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from inspect import Parameter
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

_Command = TypeVar("_Command", bound=Callable[..., None])
_KINDS = (bool, int, float, Path)  # every other option is a text


def with_options(
    settings: type[Any], *, but: Collection[str] = ()
) -> Callable[[_Command], _Command]:
    """Give a command, in place of its ``**options``, an option for each field of a dataclass.

    Name, type and default are the field's, the help is the first paragraph of the string below it,
    and its metadata are further arguments of :func:`typer.Option`. Fields named in `but` have none.
    """
    hints, words = get_type_hints(settings), _strings_below_fields(settings)
    options = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[
                _option_type(hints[field.name]),
                typer.Option(help=words[field.name], **field.metadata),
            ],
        )
        for field in fields(settings)
        if field.name not in but
    ]

    def decorate(command: _Command) -> _Command:
        signature = inspect.signature(command, eval_str=True)
        own = [
            p.replace(kind=p.KEYWORD_ONLY)
            for p in signature.parameters.values()
            if p.kind != p.VAR_KEYWORD
        ]
        every = [*own, *options]
        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in every}
        return command

    return decorate


def _option_type(hint: Any) -> Any:
    plain = any(hint in (kind, kind | None) for kind in _KINDS)
    return hint if plain else str | None


def _strings_below_fields(settings: type[Any]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id: " ".join(below.value.value.partition("\n\n")[0].split())
        for node, below in pairwise(tree.body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


def option_words(
    settings: Any,
    *,
    always: Collection[str],
    names: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> list[str]:
    """Write settings as words of a command line: those that are no default, or `always` given.

    `names` are those of options that are called otherwise than their fields, `texts` those of
    values that are written otherwise. A broker is written without its user and password.
    """
    found = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default and field.name not in always:
            continue
        option = (names or {}).get(field.name, field.name).replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
            continue
        if field.name == "broker":
            from gatewise_edge.link.broker_url import Endpoint

            value = Endpoint(value).url
        text = f"{value:.12g}" if isinstance(value, float) else str(value)
        found += [f"--{option}", shlex.quote((texts or {}).get(field.name, text))]
    return found
