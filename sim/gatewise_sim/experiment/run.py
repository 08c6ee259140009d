"""Prepare a scenario, run it under the system and its baselines, and make the report."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gatewise.columns.cells import UNKNOWN_CLASS
from gatewise.console import plain
from gatewise.errors import InputError
from gatewise.formats import duration, millis, plural
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.seen_rows import SeenRows
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.errors import RunError
from gatewise_sim.experiment.baselines import make_baselines, row_weights, sampled
from gatewise_sim.experiment.examples import choose_examples
from gatewise_sim.experiment.operating_point import at_goal, on_disk, operating_points
from gatewise_sim.experiment.policy_run import PolicyRun, stage_results
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.fleet.answer_rules import rows_by_stage
from gatewise_sim.fleet.answers import ROUTES, Answers
from gatewise_sim.fleet.devices.decisions import routes_by_stage
from gatewise_sim.fleet.energy import DeviceEnergy
from gatewise_sim.fleet.estimate.intervals import LEVEL
from gatewise_sim.fleet.estimate.result import FleetEstimate
from gatewise_sim.fleet.estimate.stepping import estimate_fleet
from gatewise_sim.fleet.money import Prices
from gatewise_sim.fleet.progress import ProgressListener
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings, policy_name
from gatewise_sim.fleet.workload.arrivals import parse
from gatewise_sim.fleet.workload.kinds import Workload
from gatewise_sim.report.model import (
    SIMULATION_KIND,
    Breakdown,
    ClassResult,
    EnergyUse,
    FaultSpan,
    Report,
    RowCheck,
    TimelineBin,
    Transport,
    TwinFigures,
)
from gatewise_sim.report.policy_result import POLICY_NAMES

if TYPE_CHECKING:
    from gatewise_sim.live.run import LiveRun

_EDGE, _CLOUD = ROUTES.index("edge"), ROUTES.index("cloud")
_TWIN_MEANS: Final = ("accuracy", "offload_rate", "fallback", "cost", "bytes_up", "bytes_down")
_TWIN_MS: Final = ("p50", "p95", "offloaded_p50", "offloaded_p95")
#: How a device is used to find out how long an offload takes.
_ALONE, _ALONE_SECONDS = parse("periodic:1s"), 120.0
_OF_RUN: Final = ("processes", "behind_ms", "faults", "devices", "workers")
_VERSIONS: Final = ("gatewise", "numpy", "onnxruntime")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scenario with all that it names read and checked."""

    scenario: Scenario
    rows: Rows
    bundle: Bundle  # at its operating point
    routes: Routes
    system_routes: Routes  # by stage for a policy of one's own, else the same
    settings: FleetSettings  # with the calibration's service times
    calibration: Calibration
    energy: DeviceEnergy
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
    """Read the files that a scenario names, and compute the route of each row."""
    bundle = at_goal(bundle, scenario.goal)
    manifest = bundle.manifest
    energy = DeviceEnergy()
    if scenario.device_energy is not None:
        energy = DeviceEnergy.from_file(
            scenario.device_energy, manifest.feature_names, len(manifest.stages)
        )
    prices = None if scenario.prices is None else Prices.from_file(scenario.prices)
    _check_mix(scenario, rows)
    if scenario.engine == "live":
        from gatewise_sim.live.run import check_live

        check_live(scenario.settings(), broker=scenario.broker)
    routes = Routes.from_bundle(bundle, rows.X, rows.truth, backend=scenario.backend)
    if calibration is None:
        calibration = (
            Calibration.assumed(routes)
            if scenario.calibration is None
            else Calibration.from_file(scenario.calibration, n_stages=routes.plan.n_stages)
        )
    settings = calibration.apply(scenario.settings(rows.truth), live=scenario.engine == "live")
    own = callable(settings.policy)
    system = routes_by_stage(bundle, rows.X, routes) if own else routes
    return Prepared(scenario, rows, bundle, routes, system, settings, calibration, energy, prices)


def _check_mix(scenario: Scenario, rows: Rows) -> None:
    if scenario.mix is None:
        return
    if rows.truth is None:
        raise InputError("mix: the shares of the classes need the rows' labels (--target)")
    unknown = int((rows.truth == UNKNOWN_CLASS).sum() + (rows.truth == NO_LABEL).sum())
    if unknown:
        raise InputError(f"mix: {unknown} rows have a label that is no class of the bundle")


def run_scenario(
    prepared: Prepared, command: str, *, watch: ProgressListener | None = None, jobs: int = 1
) -> Report:
    """Run the system and its baselines."""
    listener = watch or ProgressListener()
    scenario, routes, settings = prepared.scenario, prepared.routes, prepared.settings
    own = prepared.system_routes
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
        system, live = _run_live(prepared, as_set, listener)
        listener.policy("twin", "Gatewise in virtual time")
        twin = run_virtual("system", own, settings)
        extra = {
            "transport": Transport(kind="mqtt", broker=live.broker, link=settings.link.name),
            "checked": _check_rows(live.answers, own),
            "twin": TwinFigures(live=_figures(system.estimate), virtual=_figures(twin.estimate)),
            "troubles": tuple(live.troubles),
            "run": plain(_run_figures(live)),
        }
    else:
        system = run_virtual("system", own, settings)
    runs = [system]
    weights = row_weights(routes, settings, whole=system.estimate.plan.whole)
    extra["stages"] = stage_results(
        prepared.bundle.manifest, routes, system.estimate.instances, weights
    )
    if scenario.baselines:
        for other in make_baselines(
            routes,
            settings,
            rate=system.mean("offload_rate") if own is not routes else None,
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
    estimate, instances = system.estimate, system.estimate.instances
    policies = tuple(
        one.result(
            labelled=prepared.labelled,
            energy=prepared.energy,
            prices=prepared.prices,
            manifest=prepared.bundle.manifest,
        )
        for one in runs
    )
    first = policies[0]
    idle = system.energy(prepared.energy).idle / instances if instances else 0.0
    found: dict[str, Any] = {
        "kind": SIMULATION_KIND,
        "dataset": prepared.rows.name,
        "method": f"{plan.model}/{plan.version}",
        "transport": Transport(kind="virtual", broker="simulated", link=settings.link.name),
        "engine": scenario.engine,
        "policies": policies,
        "timeline": tuple(TimelineBin(**entry) for entry in estimate.timeline),
        "examples": choose_examples(prepared.bundle.manifest, prepared.routes, prepared.rows.X),
        "features": prepared.bundle.manifest.feature_names,
        "faults": tuple(FaultSpan(**fault) for fault in estimate.faults),
        "classes": tuple(
            ClassResult(**entry, label=str(plan.classes[entry["class_index"]]))
            for entry in estimate.classes
            if 0 <= entry["class_index"] < len(plan.classes)
        ),
        "frontier": operating_points(prepared.bundle),
        "breakdown": Breakdown(
            ms=first.breakdown_ms,
            bytes={
                part: getattr(first.bytes, part) for part in ("request", "response", "protocol")
            },
            joules=vars(first.joules) | {"idle": idle},
        ),
        "energy": EnergyUse(
            radio=settings.link.radio.name,
            joules_per_device_day=first.joules_per_device_day,
            battery_wh=prepared.energy.battery_wh,
            battery_days=first.battery_days,
        ),
        "workload": scenario.workload,
        "sampling": str(estimate.plan),
        "confidence_level": LEVEL,
        "calibration": plain(prepared.calibration.as_dict()),
        "settings": plain(scenario.as_dict()),
        "command": command,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in _VERSIONS},
        "notes": _too_late(prepared, system) + _notes(prepared),
        "troubles": (),
    }
    return Report(**found | extra)


def _too_late(prepared: Prepared, system: PolicyRun) -> tuple[str, ...]:
    """Say which deadline an offload would need, if no answer of the cloud came in time."""
    settings, answers = prepared.settings, system.answers()
    if not answers.cloud_too_late or system.estimate.faults:
        return ()
    one = replace(
        settings, devices=1, seconds=_ALONE_SECONDS, workload=_ALONE, mix=None, in_turn=None,
        deadline_ms=60_000.0, policy="cloud-only", breaker=False,
    )  # fmt: skip
    found = estimate_fleet(prepared.routes, one).latency_ms.get("offloaded_p95")
    if found is None:
        return ()
    return (
        f"An offload over {settings.link.name} takes {millis(found.value)} (19 of 20, one device "
        f"alone), and the deadline is {millis(settings.deadline_ms)}: give --deadline-ms "
        f"{max(10, 10 * math.ceil(0.15 * found.value))} or more, or another link.",
    )


def _notes(prepared: Prepared) -> tuple[str, ...]:
    """Remarks that do not follow from the other keys."""
    notes = prepared.rows.notes
    if (policy := prepared.settings.policy) != "system":
        notes += (
            f"The fleet runs the policy {policy_name(policy)}; what is said of stages is said of "
            "the operating point's thresholds.",
        )
    outages, seconds = prepared.settings.outages, prepared.settings.seconds
    for window in outages.windows:
        if next(iter(window.spans(seconds, outages.day_begins)), None) is None:
            notes += (
                f"An outage of the {window.what} never comes: the run is {duration(seconds)} long "
                "and begins at another time; --time and --day-start change that.",
            )
    if (seen := SeenRows.find(prepared.bundle)) is not None:
        rows = prepared.rows.X
        notes += tuple(filter(None, [seen.remark(seen.count(rows), len(rows))]))
    plan, calibration = prepared.routes.plan, prepared.calibration
    if not plan.has_cloud:
        notes += ("No instance leaves its device: every answer is the device's own.",)
    if calibration.source != "assumed" and calibration.model != f"{plan.model}/{plan.version}":
        notes += (f"The service times are those of another bundle: {calibration.model}.",)
    return notes


# -- the live engine -----------------------------------------------------------------------


def _run_figures(run: LiveRun) -> dict[str, Any]:
    """Figures of a live run itself; the only part of a report that depends on time and place."""
    return {
        "seconds": round(run.seconds, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu_seconds": round(run.cpu_seconds, 3),
        "peak_mb": round(run.peak_mb, 1),
        **{name: getattr(run, name) for name in _OF_RUN},
    }


def _run_live(
    prepared: Prepared, settings: FleetSettings, watch: ProgressListener
) -> tuple[PolicyRun, LiveRun]:
    """Let real processes answer the system's instances, in real time."""
    from gatewise_sim.live.run import run_live

    scenario, rows, routes = prepared.scenario, prepared.rows, prepared.system_routes
    with on_disk(prepared.bundle) as path:
        run = run_live(
            path,
            rows.X,
            settings,
            truth=rows.truth,
            broker=scenario.broker,
            processes=scenario.processes,
            watch=watch,
        )
    if not len(run.answers) and run.troubles:
        raise RunError("live run", "; ".join(run.troubles))
    if routes.by_stage is not None:
        run = replace(run, answers=rows_by_stage(run.answers, routes))
    estimate = FleetEstimate.from_run(routes, settings, run, device_energy=prepared.energy)
    return PolicyRun("system", "live", routes, settings, estimate, run.lost), run


def _check_rows(answers: Answers, routes: Routes) -> RowCheck:
    """Compare each answer's label, route and cost with those of virtual time for its row.

    Fallbacks and errors are left out: which there are is a matter of time. So are the routes where
    a policy of one's own decides, which may look at the time.
    """
    compared = np.isin(answers.route, (_EDGE, _CLOUD))
    row, by_cloud = answers.row[compared], answers.route[compared] == _CLOUD
    sent = routes.offload[row] if routes.by_stage is None else by_cloud
    label = np.where(sent, routes.cloud_label[row], routes.local_label[row])
    offload_cost = routes.request_cost[row] + routes.plan.offload_price
    wrong = {
        "labels": answers.label[compared] != label,
        "routes": by_cloud != sent,
        "costs": answers.cost[compared] != np.where(sent, offload_cost, routes.local_cost[row]),
    }
    return RowCheck(
        compared=int(compared.sum()),
        differing={name: int(np.count_nonzero(each)) for name, each in wrong.items()},
    )


def _figures(estimate: FleetEstimate) -> dict[str, float | None]:
    """Means per instance and latencies (ms) that a live run and its twin are compared by."""
    found: dict[str, float | None] = {
        name: estimate.means[name].value if name in estimate.means else None for name in _TWIN_MEANS
    }
    for name in _TWIN_MS:
        latency = estimate.latency_ms.get(name)
        found[f"{name}_ms"] = None if latency is None else latency.value
    return found
