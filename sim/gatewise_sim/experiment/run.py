"""Run a scenario under the system and its baselines, and make the report."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from gatewise.console import plain
from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.experiment.baselines import make_baselines, row_weights, sampled
from gatewise_sim.experiment.live_run import (
    check_rows,
    run_figures,
    run_live_policy,
    twin_figures,
)
from gatewise_sim.experiment.operating_point import at_goal, operating_points
from gatewise_sim.experiment.policy_run import PolicyRun
from gatewise_sim.experiment.rows import UNKNOWN_CLASS, Rows
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.experiment.stage_results import stage_results
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.estimate.intervals import LEVEL
from gatewise_sim.fleet.estimate.stepping import estimate_fleet
from gatewise_sim.fleet.money import Prices
from gatewise_sim.fleet.progress import Listeners
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.workload.kinds import Workload
from gatewise_sim.report.model import (
    SIMULATION_KIND,
    Breakdown,
    EnergyUse,
    FaultSpan,
    Report,
    Transport,
)
from gatewise_sim.report.policy_result import POLICY_NAMES

if TYPE_CHECKING:
    from gatewise_sim.fleet.progress import ProgressListener

__all__ = ["Prepared", "prepare", "run"]

_VERSIONS: Final = ("gatewise", "numpy", "onnxruntime")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scenario with all that it names read and checked; see :func:`prepare`.

    Attributes
    ----------
    scenario : Scenario
    rows : Rows
    bundle : Bundle
        At its operating point.
    routes : Routes
    settings : FleetSettings
        With the calibration's service times.
    calibration : Calibration
    energy : DeviceEnergy or None
    prices : Prices or None
    """

    scenario: Scenario
    rows: Rows
    bundle: Bundle
    routes: Routes
    settings: FleetSettings
    calibration: Calibration
    energy: DeviceEnergy | None
    prices: Prices | None

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        return self.rows.truth is not None

    @property
    def title(self) -> str:
        """The run in a few words."""
        s = self.scenario
        return (
            f"{self.routes.plan.model}: {plural(s.devices, 'device')}, "
            f"{plural(s.workers, 'worker')}, link {self.settings.link.name}"
        )


def prepare(
    bundle: Bundle, rows: Rows, scenario: Scenario, *, calibration: Calibration | None = None
) -> Prepared:
    """Read the files that a scenario names, and compute the route of each row.

    Parameters
    ----------
    bundle : Bundle
    rows : Rows
    scenario : Scenario
    calibration : Calibration, optional
        Of a short live run; else the scenario's file, else documented assumptions.

    Raises
    ------
    InputError
        If a file cannot be used, or rows, bundle and scenario do not fit each other.
    """
    bundle = at_goal(bundle, scenario.goal)
    manifest = bundle.manifest
    energy = None
    if scenario.device_energy is not None:
        on_device = sum(tier == "device" for tier in manifest.tiers)
        energy = DeviceEnergy.from_file(scenario.device_energy, manifest.feature_names, on_device)
    prices = None if scenario.prices is None else Prices.from_file(scenario.prices)
    _check_mix(scenario, rows)
    if scenario.engine == "live":
        from gatewise_sim.live.run import check_live

        check_live(scenario.settings(), broker=scenario.broker)
    routes = Routes.from_bundle(bundle, rows.X, rows.truth)
    if calibration is None:
        calibration = (
            Calibration.assumed(routes)
            if scenario.calibration is None
            else Calibration.from_file(scenario.calibration, n_stages=routes.plan.n_here)
        )
    settings = calibration.apply(scenario.settings(rows.truth), live=scenario.engine == "live")
    return Prepared(scenario, rows, bundle, routes, settings, calibration, energy, prices)


def run(
    prepared: Prepared, command: str, *, watch: ProgressListener | None = None, jobs: int = 1
) -> Report:
    """Run the system and its baselines.

    Parameters
    ----------
    prepared : Prepared
    command : str
        Repeats the run.
    watch : ProgressListener, optional
        Listener to the run's progress.
    jobs : int
        Processes; the figures do not depend on it.

    Raises
    ------
    GatewiseError
        If no instance comes, or a part of a live run does not start.
    """
    listener: ProgressListener = Listeners() if watch is None else watch
    scenario, routes, settings = prepared.scenario, prepared.routes, prepared.settings
    assert isinstance(settings.workload, Workload)  # a scenario has read it
    expected = settings.workload.mean_rate * settings.devices * settings.seconds
    listener.begin(prepared.title, settings.seconds, round(expected))

    def run_virtual(key: str, routes: Routes, settings: FleetSettings) -> PolicyRun:
        estimate = estimate_fleet(
            routes,
            settings,
            sampling=None if key == "system" else sampled(routes, settings),
            device_energy=prepared.energy,
            jobs=jobs,
            watch=listener,
        )
        return PolicyRun(key, "virtual", routes, settings, estimate)

    extra: dict[str, Any] = {}
    listener.policy("system", POLICY_NAMES["system"])
    if scenario.engine == "live":
        as_set = scenario.settings(prepared.rows.truth)  # the link without the proxy's share
        measured, live = run_live_policy(
            prepared.bundle,
            prepared.rows,
            routes,
            as_set,
            energy=prepared.energy,
            broker=scenario.broker,
            processes=scenario.processes,
            watch=listener,
        )
        system = PolicyRun("system", "live", routes, as_set, measured, live.lost)
        listener.policy("twin", "Gatewise in virtual time")
        twin = run_virtual("system", routes, settings)
        extra = {
            "transport": Transport(kind="mqtt", broker=live.broker, link=settings.link.name),
            "checked": check_rows(live.answers, routes),
            "twin": twin_figures(system.estimate, twin.estimate),
            "troubles": tuple(live.troubles),
            "run": plain(run_figures(live)),
        }
    else:
        system = run_virtual("system", routes, settings)
    runs = [system]
    weights = row_weights(routes, settings, whole=system.estimate.plan.whole)
    extra["stages"] = stage_results(
        prepared.bundle.manifest, routes, system.estimate.instances, weights
    )
    if scenario.baselines:
        for other in make_baselines(
            routes,
            settings,
            rate=system.mean("offload_rate") if settings.pace is not None else None,
            weights=weights,
            labelled=prepared.labelled,
        ):
            listener.policy(other.key, POLICY_NAMES[other.key])
            runs.append(run_virtual(other.key, other.routes, other.settings))
    report = _report(prepared, runs, command, extra)
    policies = "one policy" if len(runs) == 1 else f"{len(runs)} policies"
    listener.end(f"{report.instances:,} instances under {policies}")
    return report


def _report(
    prepared: Prepared, runs: list[PolicyRun], command: str, extra: dict[str, Any]
) -> Report:
    scenario, settings, system = prepared.scenario, prepared.settings, runs[0]
    plan = prepared.routes.plan
    used, instances = system.energy(prepared.energy), system.estimate.instances
    found: dict[str, Any] = {
        "kind": SIMULATION_KIND,
        "dataset": prepared.rows.name,
        "method": f"{plan.model}/{plan.version}",
        "transport": Transport(kind="virtual", broker="simulated", link=settings.link.name),
        "engine": scenario.engine,
        "policies": tuple(
            one.result(labelled=prepared.labelled, energy=prepared.energy, prices=prepared.prices)
            for one in runs
        ),
        "timeline": system.timeline(),
        "faults": tuple(FaultSpan(**fault) for fault in system.estimate.faults),
        "classes": system.classes(plan.classes),
        "frontier": operating_points(prepared.bundle),
        "breakdown": Breakdown(
            ms=dict(system.estimate.breakdown_ms),
            bytes=system.byte_parts(),
            joules=system.joule_parts() | {"idle": used.idle / instances if instances else 0.0},
        ),
        "energy": EnergyUse(
            radio=settings.link.radio.name,
            joules_per_device_day=used.per_device_day,
            battery_wh=None if prepared.energy is None else prepared.energy.battery_wh,
            battery_days=used.battery_days,
        ),
        "workload": scenario.workload,
        "sampling": system.estimate.stepped,
        "confidence_level": LEVEL,
        "calibration": plain(prepared.calibration.as_dict()),
        "settings": plain(scenario.as_dict()),
        "command": command,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in _VERSIONS},
        "notes": _notes(prepared),
        "troubles": (),
    }
    return Report(**found | extra)


def _notes(prepared: Prepared) -> tuple[str, ...]:
    """Remarks that do not follow from the other keys."""
    notes = prepared.rows.notes
    plan, calibration = prepared.routes.plan, prepared.calibration
    if not plan.has_cloud:
        notes += ("The bundle has no cloud model: every answer is the device's own.",)
    if calibration.source != "assumed" and calibration.model != f"{plan.model}/{plan.version}":
        notes += (f"The service times are those of another bundle: {calibration.model}.",)
    return notes


def _check_mix(scenario: Scenario, rows: Rows) -> None:
    if scenario.mix is None:
        return
    if rows.truth is None:
        raise InputError("mix: the shares of the classes need the rows' labels (--target)")
    unknown = int((rows.truth == UNKNOWN_CLASS).sum() + (rows.truth == NO_LABEL).sum())
    if unknown:
        raise InputError(f"mix: {unknown} rows have a label that is no class of the bundle")
