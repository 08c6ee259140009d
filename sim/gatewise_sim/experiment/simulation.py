"""A simulation as one call, and as a job by names alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from gatewise_export.bundle.bundle import Bundle
from gatewise_signals.blocks.block import Function, load_block_functions
from gatewise_sim.experiment.operating_point import at_goal, open_whole
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.run import Prepared, prepare, run_scenario
from gatewise_sim.report.document import Report
from gatewise_sim.report.output import SIMULATION
from gatewise_sim.scenario import Scenario

TIMINGS: str = "timings.toml"


@dataclass(frozen=True)
class Job:
    """A simulation by names alone.

    `bundle` and `data` are paths (see :meth:`.Rows.load`), `target` the column of the labels,
    `scenario` the deployment, `blocks`, ``NAME=module:function``, functions of the bundle's blocks.
    """

    bundle: str
    data: str
    target: str | None = None
    scenario: Scenario = field(default_factory=Scenario)
    blocks: tuple[str, ...] = ()

    def prepare(self) -> Prepared:
        """Read and check the bundle, the rows and the scenario's files."""
        whole = open_whole(self.bundle, load_block_functions(self.blocks))
        bundle = at_goal(whole, self.scenario.goal)
        rows = Rows.load(self.data, bundle.manifest, target=self.target)
        return prepare(bundle, rows, self.scenario)

    def command(self, folder: str | Path | None = None) -> str:
        """Command line that repeats it, with the timings and rarer settings in a `folder`."""
        words = ["gatewise simulate", shlex.quote(self.bundle), "--data", shlex.quote(self.data)]
        if self.target is not None:
            words += ["--target", shlex.quote(self.target)]
        words += [f"--block {shlex.quote(block)}" for block in self.blocks]
        words += self.scenario.words()
        if folder is not None:
            words += ["--settings", shlex.quote(str(Path(folder) / TIMINGS))]
        return " ".join(words)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Report of a simulation, and the scenario that it ran."""

    report: Report
    scenario: Scenario

    def __repr__(self) -> str:
        return f"<Simulation: {self.summary}>"  # a report's own fills many screens

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        from gatewise_sim.report.findings import answer

        return "".join(answer(self.report))

    def write(self, folder: str | Path) -> None:
        """Write page, report, tables and settings into a folder, all or nothing."""
        # Here, since pages need a plotting library and a simulation alone does not.
        from gatewise_sim.report.run_page import report_files

        folder = Path(folder)
        SIMULATION.check(folder)
        files = report_files(self.report) | {TIMINGS: settings_text(self.report, self.scenario)}
        SIMULATION.write(folder, files)


def settings_text(report: Report, scenario: Scenario) -> str:
    """Settings file that repeats a run: the rarer settings, and the timings that it used."""
    timings = msgspec.to_builtins(report.timings)
    lines = [*_toml_lines(scenario.rare_settings()), "", "[timings]", *_toml_lines(timings)]
    return "\n".join(lines).lstrip() + "\n"


def _toml_lines(values: Mapping[str, Any]) -> list[str]:
    """Texts, numbers and lists of them as lines of TOML, which writes them as JSON does."""
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]


def simulate(
    bundle: Bundle | str | Path,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    blocks: Mapping[str, Function] | None = None,
    scenario: Scenario | None = None,
    **changes: Any,
) -> Simulation:
    """Simulate a fleet that answers the rows of a table with a bundle.

    Parameters
    ----------
    bundle : Bundle or path
        What the fleet answers with.
    X : array-like of shape (n, n_features)
        Columns in the manifest's order, or by name in a DataFrame, of raw columns for a bundle with
        encoders; windows, for a bundle with blocks.
    y : array-like of shape (n,), optional
        Labels as the user writes them.
    blocks : mapping of str to callable, optional
        Functions of the bundle's blocks that are Python functions, by the block's name.
    scenario : Scenario, optional
        The deployment and its workload; by default one with the defaults.
    **changes
        Fields of :class:`Scenario` that replace the scenario's.

    Returns
    -------
    Simulation
        Its report, and the scenario that it ran.

    Raises
    ------
    GatewiseError
        For bad input, or a part of a live run that does not start.
    """
    whole = open_whole(bundle, blocks)
    changed = (Scenario() if scenario is None else scenario).changed(**changes)
    rows = Rows.from_arrays(whole.manifest.name, X, y, whole.manifest)
    report = run_scenario(prepare(whole, rows, changed), _call(changed))
    return Simulation(report, changed)


def _call(scenario: Scenario) -> str:
    default = Scenario()
    words = [
        f"{name}={getattr(scenario, name)!r}"
        for name in scenario.__struct_fields__
        if getattr(scenario, name) != getattr(default, name)
    ]
    return f"simulate({', '.join(['bundle', 'X', 'y', *words])})"
