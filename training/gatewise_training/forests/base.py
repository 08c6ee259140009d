"""Base of the budgeted forests: single models of trees, which acquire features node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gatewise_training.cascades.base import SingleModel
from gatewise_training.cascades.fit_problem import FittedStages, Problem
from gatewise_training.data.input_checks import Table

__all__ = ["FittedTrees", "ForestModel"]


@dataclass(frozen=True, eq=False)
class FittedTrees(FittedStages):
    """A candidate of one stage of trees."""

    # the forest that the trees come from, and which part of it they are
    source: Any = field(kw_only=True)


class ForestModel(SingleModel):
    """Base of both forests.

    Attributes
    ----------
    grown_ : tuple
        Source of the trees of each candidate on the frontier (:class:`FittedTrees`).
    """

    def _settle(
        self, problem: Problem, candidates: Sequence[FittedStages], calibration: Table | None
    ) -> None:
        super()._settle(problem, candidates, calibration)
        sources = {id(c.stages): c.source for c in candidates if isinstance(c, FittedTrees)}
        self.grown_ = tuple(sources[id(stages)] for stages in self.chains_)
