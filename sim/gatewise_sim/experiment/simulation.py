"""A simulation as a Python call, and as a job that a command line describes."""

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
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.run import Experiment, prepare_experiment, run_scenario
from gatewise_sim.experiment.simulated_bundle import bundle_at_goal, open_complete_bundle
from gatewise_sim.report.document import Report
from gatewise_sim.report.output import SIMULATION, TIMINGS_FILE
from gatewise_sim.scenario import Scenario


@dataclass(frozen=True)
class Job:
    """A simulation with files as its inputs.

    Parameters
    ----------
    bundle, data : str
        Path of the bundle, and file or name of the rows (see :meth:`.Rows.load`).
    target : str, optional
        Column of the labels.
    scenario : Scenario
        Deployment and workload.
    blocks : tuple of str
        Functions of the bundle's blocks, each as ``NAME=module:function``.
    """

    bundle: str
    data: str
    target: str | None = None
    scenario: Scenario = field(default_factory=Scenario)
    blocks: tuple[str, ...] = ()

    def prepare(self) -> Experiment:
        """Read and check the bundle, the rows and the scenario's files."""
        complete_bundle = open_complete_bundle(self.bundle, load_block_functions(self.blocks))
        bundle = bundle_at_goal(complete_bundle, self.scenario.goal)
        rows = Rows.load(self.data, bundle.manifest, target=self.target)
        return prepare_experiment(bundle, rows, self.scenario)

    def command(self, folder: str | Path | None = None) -> str:
        """Make the command line that repeats the simulation.

        A `folder` contains the settings file with the timings and the settings without options.
        """
        command_words = [
            "gatewise simulate",
            shlex.quote(self.bundle),
            "--data",
            shlex.quote(self.data),
        ]
        if self.target is not None:
            command_words += ["--target", shlex.quote(self.target)]
        command_words += [f"--block {shlex.quote(block)}" for block in self.blocks]
        command_words += self.scenario.command_options()
        if folder is not None:
            command_words += ["--settings", shlex.quote(str(Path(folder) / TIMINGS_FILE))]
        return " ".join(command_words)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Report and scenario of a simulation."""

    report: Report
    scenario: Scenario

    def __repr__(self) -> str:
        return f"<Simulation: {self.summary}>"  # the repr of a report is very long

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        from gatewise_sim.report.findings import summary_sentence

        return "".join(summary_sentence(self.report))

    def write(self, folder: str | Path) -> None:
        """Write page, report, tables and settings into a folder, or nothing on an error."""
        # Import the plotting library only for a page.
        from gatewise_sim.report.run_page import report_files

        folder = Path(folder)
        SIMULATION.check(folder)
        settings = settings_text(self.report, self.scenario)
        SIMULATION.write(folder, report_files(self.report) | {TIMINGS_FILE: settings})


def settings_text(report: Report, scenario: Scenario) -> str:
    """Write a settings file that repeats a run, with its timings."""
    file_only_settings, timings = (
        # TOML has the syntax of JSON for texts, numbers and lists.
        "".join(f"{name} = {json.dumps(setting)}\n" for name, setting in table.items())
        for table in (scenario.file_only_settings(), msgspec.to_builtins(report.timings))
    )
    return f"{file_only_settings}\n[timings]\n{timings}".lstrip()


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
        Bundle of the fleet.
    X : array-like of shape (n, n_features)
        Rows with columns in the manifest's order, or a DataFrame with the manifest's column names.
        A bundle with encoders takes raw columns, and a bundle with blocks windows.
    y : array-like of shape (n,), optional
        Labels, with the names of the bundle's classes.
    blocks : mapping of str to callable, optional
        Python functions of the bundle's blocks, by the block's name.
    scenario : Scenario, optional
        Deployment and workload; by default ``Scenario()``.
    **changes
        Fields of the scenario to replace.

    Returns
    -------
    Simulation
        Report, and scenario with the changes.

    Raises
    ------
    GatewiseError
        For bad input, or if a process of a live run does not start.
    """
    complete_bundle = open_complete_bundle(bundle, blocks)
    changed_scenario = (Scenario() if scenario is None else scenario).changed(**changes)
    rows = Rows.from_arrays(complete_bundle.manifest.name, X, y, complete_bundle.manifest)
    report = run_scenario(
        prepare_experiment(complete_bundle, rows, changed_scenario), _write_call(changed_scenario)
    )
    return Simulation(report, changed_scenario)


def _write_call(scenario: Scenario) -> str:
    default_scenario = Scenario()
    argument_texts = [
        f"{name}={getattr(scenario, name)!r}"
        for name in scenario.__struct_fields__
        if getattr(scenario, name) != getattr(default_scenario, name)
    ]
    return f"simulate({', '.join(['bundle', 'X', 'y', *argument_texts])})"
