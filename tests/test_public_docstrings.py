"""Docstrings in the API reference describe each parameter and cite the paper of each method."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
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
        key = self.title.rpartition(".")[2]
        definitions = [vars(c).get(key) for c in self.owner.__mro__] if self.owner else []
        return next(filter(None, (inspect.getdoc(_function(k)) for k in definitions if k)), "")

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, except for an error's `message`, which needs no description."""
        if isinstance(self.member, property):
            return []
        try:
            signature_parameters = inspect.signature(self.member).parameters.values()
        except ValueError:  # a builtin, such as the constructor of an exception
            return []
        texts = ("message",) if _is_error(self.member) else ()
        return [
            p.name
            for p in signature_parameters
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            and p.name not in ("self", "cls", *texts)
        ]


def _is_error(obj: Any) -> bool:
    return isinstance(obj, type) and issubclass(obj, BaseException)


def _function(member: Any) -> Any:
    return getattr(member, "__func__", member)


def public_names(package: str) -> Iterator[PublicName]:
    """Yield the names of a package that the reference shows, and their members in the project."""
    module = import_module(package)
    for name in module.__all__:
        obj = getattr(module, name)
        if inspect.isclass(obj) or inspect.isfunction(obj):
            yield PublicName(f"{package}.{name}", obj)
        for member in dir(obj) if inspect.isclass(obj) else ():
            attribute = _function(inspect.getattr_static(obj, member))
            code = attribute.fget if isinstance(attribute, property) else attribute
            is_project_code = (getattr(code, "__module__", None) or "").startswith("gatewise")
            if not member.startswith("_") and inspect.isfunction(code) and is_project_code:
                yield PublicName(f"{package}.{name}.{member}", attribute, obj)


@cache
def parse_docstring(doc: str) -> NumpyDocString:
    """Parse the sections of a docstring."""
    return NumpyDocString(doc)


@cache
def documented_names(doc: str, *sections: str) -> dict[str, str]:
    """Map the names in numpydoc sections of a docstring to their type, or else description."""
    types: dict[str, str] = {}
    for entry in (entry for section in sections for entry in parse_docstring(doc)[section]):
        text = entry.type or " ".join(entry.desc)
        types |= {name.strip(" *"): text for name in entry.name.split(",")}
    return types


def described_parameters(name: PublicName) -> set[str]:
    """Collect the parameters that a docstring describes.

    They are listed in a section, named in backticks, or fields with a string below them.
    """
    docs = [name.doc]
    fields: set[str] = set()
    if inspect.isclass(name.member):
        project_classes = [c for c in name.member.__mro__ if is_project_class(c)]
        docs = [inspect.cleandoc(c.__doc__ or "") for c in project_classes]
        fields = set().union(*map(fields_with_docstrings, project_classes)) | fields_with_help(
            name.member
        )
    elif name.owner:  # a method inherits the descriptions of the methods that it overrides
        key = name.title.rpartition(".")[2]
        definitions = [vars(c).get(key) for c in name.owner.__mro__]
        docs += [inspect.getdoc(_function(k)) or "" for k in definitions if k]
    sections = ("Parameters", "Attributes")
    return fields.union(
        *(set(documented_names(d, *sections)) | set(re.findall(r"`(\w+)`", d)) for d in docs)
    )


@cache
def fields_with_docstrings(owner: type) -> set[str]:
    """Collect the fields of a class with a string below them, which the site shows."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body
    return {
        node.target.id
        for node, after in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


def fields_with_help(owner: type) -> set[str]:
    """Collect the fields of a settings class whose annotation has the help text of an option."""
    if not issubclass(owner, Settings):
        return set()
    hints = get_type_hints(owner, include_extras=True)
    return {
        field
        for field, hint in hints.items()
        if any(getattr(mark, "help", None) for mark in getattr(hint, "__metadata__", ()))
    }


def parameters_with_types(name: PublicName) -> dict[str, str]:
    """Map each parameter to its type in the docstring, and for a class in those of its bases."""
    docs = [name.doc]
    if inspect.isclass(name.member):
        docs = [
            inspect.cleandoc(c.__doc__ or "") for c in name.member.__mro__ if is_project_class(c)
        ]
    types_by_parameter: dict[str, str] = {}
    for doc in reversed(docs):
        types_by_parameter |= documented_names(doc, "Parameters")
    return types_by_parameter


def is_project_class(kind: type) -> bool:
    """Whether a class belongs to the project."""
    return kind.__module__.startswith("gatewise")


def docstring_problems(name: PublicName) -> Iterator[str]:
    """Yield the parameters that a docstring lacks, and those that do not exist in the code."""
    if not name.doc:
        yield f"{name.title}: no docstring"
    if missing := set(name.parameters) - described_parameters(name):
        yield f"{name.title}: no word on {sorted(missing)}"
    if documented := set(documented_names(name.doc, "Parameters")):
        unknown = documented - {*inspect.signature(name.member).parameters}
        if unknown:
            yield f"{name.title}: it has no {sorted(unknown)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_parameter_is_described(package):
    problems = [text for name in public_names(package) for text in docstring_problems(name)]
    assert not problems, "\n".join(problems)


def test_facade_docstrings_state_types_returns_and_errors():
    """Functions and estimators have these sections; a method may inherit the types."""
    problems = []
    for name in public_names("gatewise"):
        top = name.owner or name.member
        if inspect.isclass(top) and not hasattr(top, "get_params"):
            continue
        types_by_parameter = parameters_with_types(name) if name.parameters else {}
        if missing := [p for p in name.parameters if not types_by_parameter.get(p)]:
            problems.append(f"{name.title}: no type of {missing}")
        if inspect.isclass(name.member) or not name.parameters:
            continue
        sections = parse_docstring(name.doc)
        if inspect.signature(name.member).return_annotation != "None" and not sections["Returns"]:
            problems.append(f"{name.title}: no Returns")
        code = ast.parse(textwrap.dedent(inspect.getsource(name.member)))
        if any(isinstance(n, ast.Raise) for n in ast.walk(code)) and not sections["Raises"]:
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

    assert list(docstring_problems(PublicName("f", example))) == [
        "f: no word on ['second', 'third']"
    ]
    assert list(docstring_problems(PublicName("f", wrongly_documented))) == [
        "f: it has no ['']"
    ]  # numpydoc reads "first," as one name
    assert not CITATION.search("Nan & Saligrama, NIPS 2017.")
