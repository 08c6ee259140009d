"""Run the legs of a simulation, and make its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatewise.console import plain
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.experiment import operating_point as point
from gatewise_sim.experiment import results, usage
from gatewise_sim.experiment.baselines import NAMES, baselines, row_weights
from gatewise_sim.experiment.lighter import sampled
from gatewise_sim.experiment.live_policy import checked, live_leg, twin
from gatewise_sim.experiment.results import Leg
from gatewise_sim.experiment.rows import UNKNOWN_CLASS, Rows
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.estimate.stepping import estimate_fleet
from gatewise_sim.fleet.money import Prices
from gatewise_sim.fleet.progress import Listeners
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.workload.kinds import Workload

if TYPE_CHECKING:
    from gatewise_sim.fleet.progress import ProgressListener

__all__ = ["Prepared", "prepare", "run"]


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
    def judged(self) -> bool:
        """Whether the truth is known."""
        return self.rows.truth is not None


def prepare(
    bundle: Bundle, rows: Rows, scenario: Scenario, *, calibration: Calibration | None = None
) -> Prepared:
    """Read what a scenario names, and find out what becomes of each row.

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
        If a file is not one, or rows, bundle and scenario do not fit each other.
    """
    bundle = point.at_goal(bundle, scenario.goal)
    manifest = bundle.manifest
    energy = None
    if scenario.device_energy is not None:
        on_device = sum(tier == "device" for tier in manifest.tiers)
        energy = DeviceEnergy.from_file(scenario.device_energy, manifest.feature_names, on_device)
    prices = None if scenario.prices is None else Prices.from_file(scenario.prices)
    _check_mix(scenario, rows)
    if scenario.engine == "live":
        from gatewise_sim.live.fleet import check_live

        check_live(scenario.settings(), broker=scenario.broker)
    routes = Routes.of(bundle, rows.X, rows.truth)
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
) -> dict[str, Any]:
    """Run the system and its baselines.

    Parameters
    ----------
    prepared : Prepared
    command : str
        What repeats it.
    watch : ProgressListener, optional
    jobs : int
        Processes; the figures do not depend on it.

    Returns
    -------
    dict
        The report, as :mod:`gatewise_sim.experiment.results` lays it out.

    Raises
    ------
    GatewiseError
        If no instance comes, or a part of a live run does not start.
    """
    told: ProgressListener = Listeners() if watch is None else watch
    scenario, routes, settings = prepared.scenario, prepared.routes, prepared.settings
    assert isinstance(settings.workload, Workload)  # a scenario has read it
    expected = settings.workload.mean_rate * settings.devices * settings.seconds
    told.begin(title(prepared), settings.seconds, round(expected))

    def virtual(key: str, routes: Routes, settings: FleetSettings) -> Leg:
        estimate = estimate_fleet(
            routes,
            settings,
            sampling=None if key == "system" else sampled(routes, settings),
            device_energy=prepared.energy,
            jobs=jobs,
            watch=told,
        )
        return Leg(key, NAMES[key], "virtual", routes, settings, estimate)

    legs: dict[str, Leg] = {}
    extra: dict[str, Any] = {}
    told.policy("system", NAMES["system"])
    if scenario.engine == "live":
        measured = live_leg(
            prepared.bundle,
            prepared.rows,
            routes,
            scenario.settings(prepared.rows.truth),  # the link as it is, without the proxy's share
            energy=prepared.energy,
            broker=scenario.broker,
            processes=scenario.processes,
            watch=told,
        )
        legs["system"] = measured.leg
        told.policy("twin", "Gatewise in virtual time")
        extra = {
            "transport": {
                "kind": "mqtt",
                "broker": measured.run.broker,
                "link": settings.link.name,
            },
            "checked": checked(measured.run.answers, routes),
            "twin": twin(measured.leg.estimate, virtual("system", routes, settings).estimate),
            "troubles": list(measured.run.troubles),
            "run": measured.as_dict(),
        }
    else:
        legs["system"] = virtual("system", routes, settings)
    if scenario.baselines:
        rate = legs["system"].mean("offload_rate") if settings.pace is not None else None
        for other in baselines(
            routes,
            settings,
            rate=rate,
            weights=row_weights(routes, settings, whole=legs["system"].estimate.plan.whole),
            judged=prepared.judged,
        ):
            told.policy(other.key, NAMES[other.key])
            legs[other.key] = virtual(other.key, other.routes, other.settings)
    report: dict[str, Any] = plain(_report(prepared, legs, command) | extra)
    policies = "one policy" if len(legs) == 1 else f"{len(legs)} policies"
    told.end(f"{report['instances']:,} instances under {policies}")
    return report


def title(prepared: Prepared) -> str:
    """Say in a few words what is simulated."""
    s = prepared.scenario
    return (
        f"{prepared.routes.plan.model}: {s.devices:,} device{'s' * (s.devices != 1)}, "
        f"{s.workers:,} worker{'s' * (s.workers != 1)}, link {prepared.settings.link.name}"
    )


def _report(prepared: Prepared, legs: dict[str, Leg], command: str) -> dict[str, Any]:
    scenario, settings, system = prepared.scenario, prepared.settings, legs["system"]
    plan = prepared.routes.plan
    entries = [
        results.leg_entry(
            leg, judged=prepared.judged, energy=prepared.energy, prices=prepared.prices
        )
        for leg in legs.values()
    ]
    spent = usage.spent(system, prepared.energy)
    return {
        "kind": results.KIND,
        "dataset": prepared.rows.name,
        "method": f"{plan.model}/{plan.version}",
        **results.headline_keys(legs, judged=prepared.judged),
        "transport": {"kind": "virtual", "broker": "simulated", "link": settings.link.name},
        "engine": scenario.engine,
        "legs": entries,
        "timeline": system.estimate.timeline,
        "faults": system.estimate.faults,
        "classes": results.classes(system, plan.classes),
        "frontier": point.frontier(prepared.bundle),
        "breakdown": results.breakdown(system, prepared.energy),
        "money": entries[0]["money"],
        "energy": {
            "radio": settings.link.radio.name,
            "joules_per_device_day": spent.per_device_day,
            "battery_wh": None if prepared.energy is None else prepared.energy.battery_wh,
            "battery_days": spent.battery_days,
        },
        "workload": scenario.workload,
        "sampling": system.estimate.stepped,
        "confidence_level": results.LEVEL,
        "calibration": prepared.calibration.as_dict(),
        "settings": scenario.as_dict(),
        "command": command,
        "versions": results.versions(),
        "notes": _notes(prepared),
        "troubles": [],
    }


def _notes(prepared: Prepared) -> list[str]:
    """What a reader must know, and cannot see from the other keys."""
    notes = list(prepared.rows.notes)
    plan, calibration = prepared.routes.plan, prepared.calibration
    if not plan.has_cloud:
        notes.append("The bundle has no cloud model: every answer is the device's own.")
    if calibration.source != "assumed" and calibration.model != f"{plan.model}/{plan.version}":
        notes.append(f"The service times are those of another bundle: {calibration.model}.")
    return notes


def _check_mix(scenario: Scenario, rows: Rows) -> None:
    if scenario.mix is None:
        return
    if rows.truth is None:
        raise InputError("mix: the shares of the classes need the rows' labels (--target)")
    unknown = int((rows.truth == UNKNOWN_CLASS).sum() + (rows.truth == NO_LABEL).sum())
    if unknown:
        raise InputError(f"mix: {unknown} rows have a label that is no class of the bundle")
