"""A simulation as one call, and as a job that another process can run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from gatewise_export.bundle.bundle import Bundle
from gatewise_signals.blocks.block import Function, load_block_functions
from gatewise_sim.experiment.operating_point import at_goal, open_whole
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.run import Prepared, prepare, run_scenario
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.fleet.settings import policy_name
from gatewise_sim.report.findings import answer
from gatewise_sim.report.model import Report
from gatewise_sim.report.output import SIMULATION

if TYPE_CHECKING:
    from gatewise_sim.calibration.figures import Calibration
    from gatewise_sim.fleet.progress import ProgressListener


@dataclass(frozen=True)
class Job:
    """A simulation by names alone, which another process can run.

    `bundle` and `data` are paths (see :meth:`gatewise_sim.experiment.rows.Rows.load`), `target` the
    column of the labels, and `scenario` the deployment; a `calibration` measured just now takes the
    place of the scenario's, and `blocks`, ``NAME=module:function``, are functions of the bundle's
    blocks.
    """

    bundle: str
    data: str
    target: str | None = None
    scenario: Scenario = field(default_factory=Scenario)
    calibration: Calibration | None = None
    blocks: tuple[str, ...] = ()

    def open(self) -> tuple[Bundle, Rows]:
        """Read the bundle, at the operating point asked for, and the rows that must fit it."""
        opened = open_whole(self.bundle, load_block_functions(self.blocks))
        bundle = at_goal(opened, self.scenario.goal)
        return bundle, Rows.load(self.data, bundle.manifest, target=self.target)

    def prepare(self) -> Prepared:
        """Read and check the bundle, the rows and the scenario's files; errors as :meth:`open`."""
        bundle, rows = self.open()
        return prepare(bundle, rows, self.scenario, calibration=self.calibration)

    def command(self, calibration: str | Path | None = None) -> str:
        """Write the command line that repeats it; `calibration` is the file of a measured one."""
        words = ["gatewise simulate", shlex.quote(self.bundle), "--data", shlex.quote(self.data)]
        if self.target is not None:
            words += ["--target", shlex.quote(self.target)]
        words += [f"--block {shlex.quote(given)}" for given in self.blocks]
        words += self.scenario.words()
        if self.calibration is not None and calibration is not None:
            words += ["--calibration", shlex.quote(str(calibration))]
        return " ".join(words)

    def run(self, watch: ProgressListener | None = None, jobs: int = 1) -> dict[str, Any]:
        """Run it and return the report as in ``report.json``; `watch`, `jobs`: :func:`simulate`."""
        return run_scenario(self.prepare(), self.command(), watch=watch, jobs=jobs).to_dict()


@dataclass(frozen=True, eq=False)
class Simulation:
    """Report of a simulation and the service times that it used."""

    report: Report
    calibration: Calibration

    def __repr__(self) -> str:
        return f"<Simulation: {self.summary}>"  # a report's own fills many screens

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        return "".join(answer(self.report))

    def write(self, folder: str | Path) -> None:
        """Write page, report, tables and service times into a folder, all or nothing."""
        # Here, since pages need a plotting library and a simulation by itself does not.
        from gatewise_sim.report.run_page import report_files

        folder = Path(folder)
        SIMULATION.check(folder)
        SIMULATION.write(folder, report_files(self.report, self.calibration.to_json()))


def simulate(
    bundle: Bundle | str | Path,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    blocks: Mapping[str, Function] | None = None,
    scenario: Scenario | None = None,
    watch: ProgressListener | None = None,
    jobs: int = 2,
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
    watch : ProgressListener, optional
        Is told of the progress.
    jobs : int, default 2
        Processes; the figures do not depend on it.
    **changes
        Fields of :class:`Scenario`, in place of the scenario's; `policy` may be a function that
        gets a :class:`gatewise_edge.DecisionPoint` (docs/simulation.md).

    Returns
    -------
    Simulation
        Its report and the service times that it used.

    Raises
    ------
    GatewiseError
        For bad input, or a part of a live run that does not start.
    """
    opened = open_whole(bundle, blocks)
    asked = (Scenario() if scenario is None else scenario).changed(**changes)
    rows = Rows.from_arrays(opened.manifest.name, X, y, opened.manifest)
    prepared = prepare(opened, rows, asked)
    report = run_scenario(prepared, _call(asked), watch=watch, jobs=jobs)
    return Simulation(report, prepared.calibration)


def _call(scenario: Scenario) -> str:
    default = Scenario()
    given = {k: v for k, v in vars(scenario).items() if v != getattr(default, k)}
    words = [
        f"{name}={policy_name(value) if callable(value) else repr(value)}"
        for name, value in given.items()
    ]
    return f"simulate({', '.join(['bundle', 'X', 'y', *words])})"
