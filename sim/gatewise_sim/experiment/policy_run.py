"""One policy's run of the fleet, and its result for the report: figures, energy, money.

Nothing in a result depends on the clock, the machine or where files are, but what a live run
measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.formats import DAY
from gatewise_export.bundle.manifest import Manifest
from gatewise_signals.graph import SignalGraph
from gatewise_sim.fleet.answers import ROUTES
from gatewise_sim.fleet.energy import HEADER, DeviceEnergy, packets
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.fleet.estimate.result import FleetEstimate
from gatewise_sim.fleet.messages import request_packet, response_packet
from gatewise_sim.fleet.money import Prices, Usage
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.settings import FleetSettings, policy_name
from gatewise_sim.report.model import StageResult
from gatewise_sim.report.policy_result import (
    POLICY_NAMES,
    AnswerCounts,
    AuditUse,
    ByteUse,
    JouleUse,
    LatencyHistogram,
    PolicyResult,
    StepUse,
)

_WORKER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class EnergyTotals:
    """Joules of all devices in the whole run."""

    active: float  # of radios, sensors and models
    idle: float  # at rest, radio and device
    per_device_day: float  # both, of one device in a day
    battery_days: float | None  # None if it has a plug, or nothing is drawn


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """What the fleet did under one policy."""

    key: str  # of POLICY_NAMES
    engine: str  # virtual or live
    routes: Routes
    settings: FleetSettings
    estimate: FleetEstimate
    lost: int = 0  # instances without an answer

    @property
    def name(self) -> str:
        """Its name for people; the system's is that of the policy that it runs."""
        policy = self.settings.policy
        own = self.key == "system" and policy != "system"
        return policy_name(policy) if own else POLICY_NAMES[self.key]

    @property
    def uses_cloud(self) -> bool:
        """Whether it has workers at all."""
        return self.routes.plan.has_cloud and self.settings.policy != "edge-only"

    def mean(self, name: str) -> float:
        """Mean of a figure per instance; 0 if there were none."""
        found = self.estimate.means.get(name)
        return 0.0 if found is None or math.isnan(found.value) else found.value

    def total(self, name: str) -> float:
        """Sum of a figure over all instances."""
        return self.mean(name) * self.estimate.instances

    def energy(self, device: DeviceEnergy) -> EnergyTotals:
        """Sum of what the devices drew; `device` holds their power figures."""
        settings, radio = self.settings, self.settings.link.radio
        active = sum(self.total(name) for name in ("radio_j", "feature_j", "stage_j"))
        idle = (radio.idle_w + device.idle_w) * settings.seconds * settings.devices
        a_day = DAY / settings.seconds
        days = device.days(active / settings.devices * a_day, radio)
        return EnergyTotals(
            active,
            idle,
            (active + idle) / settings.devices * a_day,
            None if days is None or math.isinf(days) else days,
        )

    def result(
        self,
        *,
        labelled: bool,
        energy: DeviceEnergy,
        prices: Prices | None,
        manifest: Manifest,
    ) -> PolicyResult:
        """Lay the run out for the report."""
        estimate, used = self.estimate, self.energy(energy)
        request, response = self.mean("payload_up"), self.mean("payload_down")
        return PolicyResult(
            key=self.key,
            name=self.name,
            engine=self.engine,
            sampling=str(estimate.plan),
            instances=round(estimate.instances),
            accuracy=self._figure("accuracy") if labelled else None,
            offload_rate=self._figure("offload_rate"),
            cost=self._figure("cost"),
            feature_cost=self._figure("feature_cost"),
            latency_ms={name: self._figure(name) for name in estimate.latency_ms},
            bytes=ByteUse(
                up=self._figure("bytes_up"),
                down=self._figure("bytes_down"),
                request=request,
                response=response,
                protocol=self.mean("bytes_up") + self.mean("bytes_down") - request - response,
            ),
            joules=JouleUse(
                radio=self.mean("radio_j"),
                features=self.mean("feature_j"),
                stages=self.mean("stage_j"),
            ),
            joules_per_device_day=used.per_device_day,
            battery_days=used.battery_days,
            answers=self.answers(),
            money=None if prices is None else prices.month(_billed(self, used)),
            utilisation=estimate.utilisation,
            workers=dict(estimate.workers),
            histogram=LatencyHistogram(
                **{name: tuple(values) for name, values in estimate.histogram.items()}
            ),
            breakdown_ms=dict(estimate.breakdown_ms),
            reasons=dict(estimate.reasons),
            computation=self.computation(manifest),
            audit=self.audit(),
        )

    def _figure(self, name: str) -> Measurement | None:
        """A mean or a latency, with an interval that is no narrower than its rows allow."""
        estimate = self.estimate
        found = (estimate.means | estimate.latency_ms).get(name)
        fixed = name == "offload_rate" and self.settings.policy in ("edge-only", "cloud-only")
        if found is None or found.low is None or found.high is None or fixed:
            return found
        low, high = estimate.of_rows.get(name, (found.low, found.high))
        return replace(found, low=min(found.low, low), high=max(found.high, high))

    def answers(self) -> AnswerCounts:
        """Count instances by what became of them."""
        devices = self.estimate.devices
        return AnswerCounts(
            **{route: round(self.total(route)) for route in ROUTES},
            late=round(devices.get("late", 0)),
            retries=round(devices.get("retries", 0)),
            audits=round(devices.get("audits", 0)),
            audits_disagreed=round(devices.get("audits_disagreed", 0)),
            lost=self.lost,
        )

    def audit(self) -> AuditUse | None:
        """What audits took and found; None if nothing was audited."""
        counted, settings = self.estimate.devices, self.settings
        promised = self.routes.disagreement_bound
        if settings.audit is None or promised is None or self.key != "system":
            return None
        return AuditUse(
            share=settings.audit,
            sent=round(self.total("audited")),
            compared=round(counted.get("audits", 0)),
            disagreed=round(counted.get("audits_disagreed", 0)),
            promised=1.0 - promised,
            bytes=self.mean("audit_bytes"),
            feature_cost=self.audit_cost,
            change=settings.data_change,
            alarms=self.estimate.alarms,
        )

    @property
    def audit_cost(self) -> float:
        """Feature cost of audits, per instance of the fleet."""
        spent, n = self.estimate.devices.get("audit_cost", 0.0), self.estimate.instances
        return spent / n if n else 0.0

    def computation(self, manifest: Manifest) -> dict[str, StepUse]:
        """Lay out what the steps of blocks took; nothing for a bundle without blocks."""
        signal = manifest.signal
        if signal is None:
            return {}
        shares = _step_shares(signal.graph, self.routes.acquired_sets, self.estimate.sets)
        price = {group.name: group.shared for group in manifest.groups}
        found = {step: StepUse(share=s, price=price[step]) for step, s in shares.items()}
        if (table := signal.prices) is not None:
            for step, use in found.items():
                uj, ms = table.microjoules(step), table.microseconds[step] / 1e3
                found[step] = replace(use, ms=ms, joules=None if uj is None else uj / 1e6)
        return found


def _step_shares(
    graph: SignalGraph, sets: NDArray[np.bool_], counts: Sequence[float]
) -> dict[str, float]:
    """Share of the instances for which each step was computed, by its label.

    Shapes: `sets` (n_sets, n_features), which features instances acquired; `counts` (n_sets,), how
    many acquired each set. Features behind the blocks' are a window's values: nothing computes
    them.
    """
    blocks, n = np.array(graph.block_of), len(graph.block_of)
    computed = np.zeros((len(sets), len(graph.steps)), np.bool_)
    for number, chosen in enumerate(sets[:, :n]):
        computed[number, [graph.step_of_block[b] for b in np.unique(blocks[chosen])]] = True
    for step in reversed(range(len(graph.steps))):  # each stands behind those that it needs
        for needed in graph.needed[step]:
            computed[:, needed] |= computed[:, step]
    shares = np.asarray(counts, np.float64) @ computed / max(float(np.sum(counts)), 1e-300)
    labels = [step.label for step in graph.steps]
    return dict(zip(labels, shares.tolist(), strict=True))


def _billed(run: PolicyRun, energy: EnergyTotals) -> Usage:
    """Sum what a bill is made of.

    An operator bills IP: each message is a packet or more, and so is each PUBACK, which goes
    alone (a device that has both to send at a time may save one).
    """
    sizes, settings, counted = run.routes.sizes, run.settings, run.estimate.devices
    sent, repeated, unsent = (counted.get(k, 0.0) for k in ("sent", "retries", "unsent"))
    requests = sent + repeated - unsent
    request = sizes.request(int(settings.deadline_ms))
    response = sizes.response(_WORKER_US)
    responses = run.total("payload_down") / response  # refusals among them
    each_up = packets(request_packet(request)) + 1
    each_down = packets(response_packet(response)) + 1
    headers = HEADER * (requests * each_up + responses * each_down)
    return Usage(
        seconds=settings.seconds,
        devices=settings.devices,
        workers=settings.workers if run.uses_cloud else 0,
        bytes=run.total("bytes_up") + run.total("bytes_down") + headers,
        joules=energy.active + energy.idle,
        feature_units=run.total("feature_cost") + run.audit_cost * run.estimate.instances,
        requests=requests,
    )


def stage_results(
    manifest: Manifest,
    routes: Routes,
    instances: float,
    weights: NDArray[np.float64] | None = None,
) -> tuple[StageResult, ...]:
    """Stages of the bundle in order, the cloud last; answers as the gates decide them.

    Shapes: `weights` (n_rows,).
    """
    costs = manifest.feature_costs()
    weight = np.ones(len(routes)) if weights is None else weights
    steps = [(f"stage {s}", manifest.stage_inputs(s)) for s in range(len(manifest.stages))]
    if manifest.cloud is not None:
        steps.append(("cloud", manifest.cloud_inputs()))
    acquired = np.zeros(costs.n_features, bool)
    found = []
    for s, (name, inputs) in enumerate(steps):
        wanted = costs.mask(inputs)
        new = np.flatnonzero(wanted & ~acquired)
        here = routes.offload if name == "cloud" else ~routes.offload & (routes.exit == s)
        share = float(weight[here].sum() / weight.sum())
        found.append(
            StageResult(
                name=name,
                features=int(wanted.sum()),
                acquires=tuple(manifest.feature_names[k] for k in new),
                price=float(costs.price(new, acquired)),
                answers=round(share * instances),
                share=share,
            )
        )
        acquired |= wanted
    return tuple(found)
