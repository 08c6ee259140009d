"""A scenario with all that it names read and checked, ready to run."""

from __future__ import annotations

from dataclasses import dataclass

from gatewise.errors import InputError
from gatewise.formats import plural
from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.experiment.operating_point import at_goal
from gatewise_sim.experiment.rows import UNKNOWN_CLASS, Rows
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.fleet.devices.decisions import routes_by_stage
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.money import Prices
from gatewise_sim.fleet.routes import NO_LABEL, Routes
from gatewise_sim.fleet.settings import FleetSettings


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scenario with all that it names read and checked; see :func:`prepare`."""

    scenario: Scenario
    rows: Rows
    bundle: Bundle  # at its operating point
    routes: Routes
    system_routes: Routes  # by stage for a policy of one's own, else the same
    settings: FleetSettings  # with the calibration's service times
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
    """Read the files that a scenario names, and compute the route of each row."""
    bundle = at_goal(bundle, scenario.goal)
    manifest = bundle.manifest
    energy = None
    if scenario.device_energy is not None:
        on_device = sum(tier == "device" for tier in manifest.tiers)
        energy = DeviceEnergy.from_file(scenario.device_energy, manifest.feature_names, on_device)
    prices = None if scenario.prices is None else Prices.from_file(scenario.prices)
    _check_mix(scenario, rows)
    if scenario.engine == "live":
        from gatewise_sim.live.checks import check_live

        gateways = "gateway" in manifest.tiers
        check_live(scenario.settings(), broker=scenario.broker, gateways=gateways)
    routes = Routes.from_bundle(bundle, rows.X, rows.truth, backend=scenario.backend)
    if calibration is None:
        calibration = (
            Calibration.assumed(routes)
            if scenario.calibration is None
            else Calibration.from_file(scenario.calibration, n_stages=routes.plan.n_here)
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
