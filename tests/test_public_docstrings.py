"""Tests that docstrings in the API reference describe parameters and cite the papers of methods."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, get_type_hints

import pytest
from numpydoc.docscrape import NumpyDocString

from docs.site_pages import PACKAGES
from gatewise.settings import Settings

FACADE_NAMES = import_module("gatewise").__all__

#: Estimators that implement the method of a paper.
PAPER_ESTIMATORS = [
    "AdaptGBRT", "AdaptLin", "AdaptLstsq", "BudgetForest", "BudgetPrune", "CEGBClassifier",
    "CEGBRanker", "CEGBRegressor", "GreedyMiser", "L1Cascade",
]  # fmt: skip
#: Conference and place in the paper.
CITATION = re.compile(r"(ICML|NIPS) 20\d\d,\s+(sections?|algorithm|equations?) \d")


class PublicName(NamedTuple):
    """A public class, function, method or property; `owner` is the class of a member."""

    title: str
    member: Any
    owner: type | None = None

    @property
    def doc(self) -> str:
        """The docstring of the object, its own or an inherited one."""
        return inspect.getdoc(self.member) or self._inherited

    @property
    def _inherited(self) -> str:
        definitions = _find_definitions(self) if self.owner else []
        docstrings = (inspect.getdoc(_unwrap_function(definition)) for definition in definitions)
        return next(filter(None, docstrings), "")

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, except for an error's `message`, which needs no description."""
        if isinstance(self.member, property):
            return []
        try:
            signature_parameters = inspect.signature(self.member).parameters.values()
        except ValueError:  # a builtin, such as the constructor of an exception
            return []
        error_names = ("message",) if _is_error(self.member) else ()
        return [
            parameter.name
            for parameter in signature_parameters
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.name not in ("self", "cls", *error_names)
        ]


def _find_definitions(name: PublicName) -> list[Any]:
    """Find the definitions of a member in its class and the bases of the class."""
    member_name = name.title.rpartition(".")[2]
    definitions = [vars(base).get(member_name) for base in name.owner.__mro__]
    return [definition for definition in definitions if definition]


def _is_error(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseException)


def _unwrap_function(member: Any) -> Any:
    """Get the function of a class method or static method."""
    return getattr(member, "__func__", member)


def find_public_names(package: str) -> Iterator[PublicName]:
    """Yield the names of a package that the reference shows, and their members in the project."""
    module = import_module(package)
    for name in module.__all__:
        public_object = getattr(module, name)
        is_class = inspect.isclass(public_object)
        if is_class or inspect.isfunction(public_object):
            yield PublicName(f"{package}.{name}", public_object)
        for member in dir(public_object) if is_class else ():
            attribute = _unwrap_function(inspect.getattr_static(public_object, member))
            code = attribute.fget if isinstance(attribute, property) else attribute
            is_project_code = (getattr(code, "__module__", None) or "").startswith("gatewise")
            if not member.startswith("_") and inspect.isfunction(code) and is_project_code:
                yield PublicName(f"{package}.{name}.{member}", attribute, public_object)


@cache
def parse_docstring(docstring: str) -> NumpyDocString:
    """Parse the sections of a docstring."""
    return NumpyDocString(docstring)


@cache
def read_documented_names(docstring: str, *sections: str) -> dict[str, str]:
    """Map the names in numpydoc sections of a docstring to their type, or else description."""
    types: dict[str, str] = {}
    for entry in (entry for section in sections for entry in parse_docstring(docstring)[section]):
        type_or_description = entry.type or " ".join(entry.desc)
        types |= {name.strip(" *"): type_or_description for name in entry.name.split(",")}
    return types


def find_described_parameters(name: PublicName) -> set[str]:
    """Collect the parameters that a docstring describes.

    They are listed in a section, named in backticks, or fields with the help text of an option.
    """
    docstrings = [name.doc]
    fields: set[str] = set()
    if inspect.isclass(name.member):
        project_classes = [base for base in name.member.__mro__ if is_project_class(base)]
        docstrings = [inspect.cleandoc(base.__doc__ or "") for base in project_classes]
        fields = find_fields_with_help(name.member)
    elif name.owner:  # a method inherits the descriptions of the methods that it overrides
        docstrings += [
            inspect.getdoc(_unwrap_function(definition)) or ""
            for definition in _find_definitions(name)
        ]
    sections = ("Parameters", "Attributes")
    return fields.union(
        *(
            set(read_documented_names(docstring, *sections))
            | set(re.findall(r"`(\w+)`", docstring))
            for docstring in docstrings
        )
    )


def find_fields_with_help(owner: type) -> set[str]:
    """Collect the fields of a settings class whose annotation has the help text of an option."""
    if not issubclass(owner, Settings):
        return set()
    hints = get_type_hints(owner, include_extras=True)
    return {
        field
        for field, hint in hints.items()
        if any(getattr(mark, "help", None) for mark in getattr(hint, "__metadata__", ()))
    }


def read_parameter_types(name: PublicName) -> dict[str, str]:
    """Map each parameter to its type in the docstring, and for a class in those of its bases."""
    docstrings = [name.doc]
    if inspect.isclass(name.member):
        docstrings = [
            inspect.cleandoc(base.__doc__ or "")
            for base in name.member.__mro__
            if is_project_class(base)
        ]
    types_by_parameter: dict[str, str] = {}
    for docstring in reversed(docstrings):
        types_by_parameter |= read_documented_names(docstring, "Parameters")
    return types_by_parameter


def is_project_class(candidate: type) -> bool:
    """Tell whether a class belongs to the project."""
    return candidate.__module__.startswith("gatewise")


def find_problems(name: PublicName) -> Iterator[str]:
    """Yield the parameters that a docstring lacks, and those that do not exist in the code."""
    if not name.doc:
        yield f"{name.title}: no docstring"
    if missing_names := set(name.parameters) - find_described_parameters(name):
        yield f"{name.title}: no word on {sorted(missing_names)}"
    if documented := set(read_documented_names(name.doc, "Parameters")):
        unknown = documented - {*inspect.signature(name.member).parameters}
        if unknown:
            yield f"{name.title}: it has no {sorted(unknown)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_parameter_is_described(package):
    problems = [problem for name in find_public_names(package) for problem in find_problems(name)]
    assert not problems, "\n".join(problems)


def test_facade_docstrings_state_types_returns_and_errors():
    """Functions and estimators have these sections; a method may inherit the types."""
    problems = []
    for name in find_public_names("gatewise"):
        top_object = name.owner or name.member
        if inspect.isclass(top_object) and not hasattr(top_object, "get_params"):
            continue
        types_by_parameter = read_parameter_types(name) if name.parameters else {}
        if missing_names := [
            parameter for parameter in name.parameters if not types_by_parameter.get(parameter)
        ]:
            problems.append(f"{name.title}: no type of {missing_names}")
        if inspect.isclass(name.member) or not name.parameters:
            continue
        sections = parse_docstring(name.doc)
        if inspect.signature(name.member).return_annotation != "None" and not sections["Returns"]:
            problems.append(f"{name.title}: no Returns")
        code = ast.parse(textwrap.dedent(inspect.getsource(name.member)))
        if any(isinstance(node, ast.Raise) for node in ast.walk(code)) and not sections["Raises"]:
            problems.append(f"{name.title}: no Raises")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", PAPER_ESTIMATORS)
def test_estimator_that_restates_a_paper_cites_it(name):
    assert name in FACADE_NAMES
    assert CITATION.search(getattr(import_module("gatewise"), name).__doc__)


def test_missing_and_unknown_parameters_are_found():
    def example(first, second, third):
        """Do nothing with `first`."""

    def wrongly_documented(first, second):
        """Do nothing.

        Parameters
        ----------
        first,
        second : int
        """

    assert list(find_problems(PublicName("f", example))) == ["f: no word on ['second', 'third']"]
    assert list(find_problems(PublicName("f", wrongly_documented))) == [
        "f: it has no ['']"
    ]  # numpydoc reads "first," as one name
    assert not CITATION.search("Nan & Saligrama, NIPS 2017.")
