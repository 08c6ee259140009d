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

FACADE = import_module("gatewise").__all__

#: Estimators that restate a paper's method; StagedCascade, ConfidenceCascade, PairCascade do not.
PAPERS = [
    "AdaptGBRT", "AdaptLin", "AdaptLstsq", "BudgetForest", "BudgetPrune", "CEGBClassifier",
    "CEGBRanker", "CEGBRegressor", "GreedyMiser", "L1Cascade",
]  # fmt: skip
SOURCE = re.compile(r"(ICML|NIPS) 20\d\d,\s+(sections?|algorithm|equations?) \d")


class Name(NamedTuple):
    """A public class, function, method or property; `owner` is the class of the last two."""

    title: str
    what: Any
    owner: type | None = None

    @property
    def doc(self) -> str:
        """The docstring of the object, its own or an inherited one."""
        return inspect.getdoc(self.what) or self._inherited

    @property
    def _inherited(self) -> str:
        key = self.title.rpartition(".")[2]
        kin = [vars(c).get(key) for c in self.owner.__mro__] if self.owner else []
        return next(filter(None, (inspect.getdoc(_function(k)) for k in kin if k)), "")

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, except for an error's `message`, which needs no description."""
        if isinstance(self.what, property):
            return []
        try:
            found = inspect.signature(self.what).parameters.values()
        except ValueError:  # a builtin, such as the constructor of an exception
            return []
        texts = ("message",) if _is_error(self.what) else ()
        return [
            p.name
            for p in found
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            and p.name not in ("self", "cls", *texts)
        ]


def _is_error(what: Any) -> bool:
    return isinstance(what, type) and issubclass(what, BaseException)


def _function(member: Any) -> Any:
    return getattr(member, "__func__", member)


def public_names(package: str) -> Iterator[Name]:
    """Yield the names of a package that the reference shows, and their members in the project."""
    module = import_module(package)
    for name in module.__all__:
        what = getattr(module, name)
        if inspect.isclass(what) or inspect.isfunction(what):
            yield Name(f"{package}.{name}", what)
        for member in dir(what) if inspect.isclass(what) else ():
            found = _function(inspect.getattr_static(what, member))
            code = found.fget if isinstance(found, property) else found
            ours = (getattr(code, "__module__", None) or "").startswith("gatewise")
            if not member.startswith("_") and inspect.isfunction(code) and ours:
                yield Name(f"{package}.{name}.{member}", found, what)


@cache
def parsed(doc: str) -> NumpyDocString:
    """Parse the sections of a docstring."""
    return NumpyDocString(doc)


@cache
def listed(doc: str, *sections: str) -> dict[str, str]:
    """Map the names in numpydoc sections of a docstring to their type, or else description."""
    found: dict[str, str] = {}
    for entry in (entry for section in sections for entry in parsed(doc)[section]):
        said = entry.type or " ".join(entry.desc)
        found |= {name.strip(" *"): said for name in entry.name.split(",")}
    return found


def described(name: Name) -> set[str]:
    """Collect the parameters that a docstring describes.

    A section lists them, or the prose has them in backticks, or a field has a string below it.
    """
    docs = [name.doc]
    fields: set[str] = set()
    if inspect.isclass(name.what):
        ours = [c for c in name.what.__mro__ if is_ours(c)]
        docs = [inspect.cleandoc(c.__doc__ or "") for c in ours]
        fields = set().union(*map(fields_with_words, ours)) | fields_with_help(name.what)
    elif name.owner:  # a method inherits the descriptions of the methods that it overrides
        key = name.title.rpartition(".")[2]
        kin = [vars(c).get(key) for c in name.owner.__mro__]
        docs += [inspect.getdoc(_function(k)) or "" for k in kin if k]
    sections = ("Parameters", "Attributes")
    return fields.union(*(set(listed(d, *sections)) | set(re.findall(r"`(\w+)`", d)) for d in docs))


@cache
def fields_with_words(owner: type) -> set[str]:
    """Fields of a class with a string below them; the site does not show comments."""
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


def parameters_with_types(name: Name) -> dict[str, str]:
    """Map each parameter to its type in the docstring, and for a class in those of its bases."""
    docs = [name.doc]
    if inspect.isclass(name.what):
        docs = [inspect.cleandoc(c.__doc__ or "") for c in name.what.__mro__ if is_ours(c)]
    typed: dict[str, str] = {}
    for doc in reversed(docs):
        typed |= listed(doc, "Parameters")
    return typed


def is_ours(kind: type) -> bool:
    """Whether a class belongs to the project."""
    return kind.__module__.startswith("gatewise")


def faults(name: Name) -> Iterator[str]:
    """Yield the parameters that a docstring lacks, and those that it has but the code has not."""
    if not name.doc:
        yield f"{name.title}: no docstring"
    if missing := set(name.parameters) - described(name):
        yield f"{name.title}: no word on {sorted(missing)}"
    if own := set(listed(name.doc, "Parameters")):
        strange = own - {*inspect.signature(name.what).parameters}
        if strange:
            yield f"{name.title}: it has no {sorted(strange)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_parameter_is_described(package):
    found = [fault for name in public_names(package) for fault in faults(name)]
    assert not found, "\n".join(found)


def test_facade_docstrings_state_types_returns_and_errors():
    """Functions and estimators have these sections; a method may inherit the types."""
    found = []
    for name in public_names("gatewise"):
        top = name.owner or name.what
        if inspect.isclass(top) and not hasattr(top, "get_params"):
            continue
        typed = parameters_with_types(name) if name.parameters else {}
        if missing := [p for p in name.parameters if not typed.get(p)]:
            found.append(f"{name.title}: no type of {missing}")
        if inspect.isclass(name.what) or not name.parameters:
            continue
        sections = parsed(name.doc)
        if inspect.signature(name.what).return_annotation != "None" and not sections["Returns"]:
            found.append(f"{name.title}: no Returns")
        code = ast.parse(textwrap.dedent(inspect.getsource(name.what)))
        if any(isinstance(n, ast.Raise) for n in ast.walk(code)) and not sections["Raises"]:
            found.append(f"{name.title}: no Raises")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PAPERS)
def test_estimator_that_restates_a_paper_cites_it(name):
    assert name in FACADE
    assert SOURCE.search(getattr(import_module("gatewise"), name).__doc__)


def test_missing_and_unknown_parameters_are_found():
    def example(first, second, third):
        """Do nothing with `first`."""

    def broken(first, second):
        """Do nothing.

        Parameters
        ----------
        first,
        second : int
        """

    assert list(faults(Name("f", example))) == ["f: no word on ['second', 'third']"]
    assert list(faults(Name("f", broken))) == ["f: it has no ['']"]  # numpydoc takes "first," whole
    assert not SOURCE.search("Nan & Saligrama, NIPS 2017.")
