"""The whole way in one call: real data in, a running edge and cloud, a measured report out."""

from __future__ import annotations

import hashlib
import io
import platform
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gatewise.console import note, progress
from gatewise.costs import FeatureCosts
from gatewise.errors import GatewiseError, InputError
from gatewise_sim.demo import prepare
from gatewise_sim.fleet.network import proxy as network
from gatewise_sim.live import demo_runs as live
from gatewise_sim.report import output, page
from gatewise_sim.report.legs import Expected, compare, measure, to_json
from gatewise_training import methods

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_sim.demo.prepare import Parts
    from gatewise_training.cascades.cascade import CascadeClassifier
    from gatewise_training.data.datasets import Dataset

__all__ = ["Options", "run_demo"]

MAX_LOSS = 0.005
"""Accuracy that a demo gives up at most, unless told otherwise: data this small is noisy, and a
test of 540 rows knows an accuracy to half a percent only."""

_SAMPLE_ROWS = 32
_VERSIONS = ("numpy", "scikit-learn", "lightgbm", "onnxruntime", "paho-mqtt")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``gatewise demo`` is asked to do; the defaults are the command's.

    Attributes
    ----------
    dataset : str
        A bundled set, or a CSV, parquet or npz file.
    target : str or None
        The file's label column.
    costs : Path or None
        Feature prices, TOML or CSV; 1 a feature by default.
    method : str
        One of ``gatewise_training.methods.cascades()``.
    devices, workers : int
    instances : int or None
        Test instances to route; all that were held out by default.
    broker : str or None
        URL of a broker that runs already; the embedded one by default.
    link : str
        A profile of :data:`gatewise_sim.fleet.network.proxy.PROFILES`.
    budget, max_loss, offload_rate : float or None
        At most one: how the operating point is picked.
    allow_missing : bool
        Take NaN as a value.
    stage_kb : int
        Room for a stage on a device, in KB; for method "staged".
    deadline_ms : float
    seed : int
    out : Path
        Folder for the report.
    """

    dataset: str = "digits"
    target: str | None = None
    costs: Path | None = None
    method: str = "staged"
    devices: int = 4
    workers: int = 1
    instances: int | None = None
    broker: str | None = None
    link: str = "wifi"
    budget: float | None = None
    max_loss: float | None = None
    offload_rate: float | None = None
    allow_missing: bool = False
    stage_kb: int = 32
    deadline_ms: float = 2000.0
    seed: int = 0
    out: Path = Path("demo-out")

    def command(self) -> str:
        """Write the command line that repeats the run."""
        words = ["gatewise", "demo"]
        for option in fields(self):
            value = getattr(self, option.name)
            if (
                value is None
                or value is False
                or (option.name == "out" and value == option.default)
            ):
                continue
            if value == option.default and option.name not in ("dataset", "method", "seed"):
                continue
            if option.name == "broker":
                value = self.settings().broker_name  # no password in a report
            name = f"--{option.name.replace('_', '-')}"
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words += [name] if value is True else [name, shlex.quote(text)]
        return " ".join(words)

    def settings(self) -> live.Settings:
        """How the bundle is deployed."""
        return live.Settings(
            devices=self.devices,
            workers=self.workers,
            broker=self.broker,
            link=network.profile(self.link),
            deadline_ms=self.deadline_ms,
            seed=self.seed,
        )


def run_demo(options: Options, *, quiet: bool = False) -> dict[str, Any]:
    """Train, pack, verify, deploy, measure; write the report's folder.

    Parameters
    ----------
    options : Options
    quiet : bool, default False
        Show no progress.

    Returns
    -------
    dict
        The report, as in ``report.json``.

    Raises
    ------
    GatewiseError
        For bad input or a part that does not start; nothing is written then.
    """
    settings = options.settings()
    output.DEMO.check(options.out)
    live.check(settings)
    clock = _Clock()
    with clock.phase("load"):
        data = prepare.load(
            options.dataset, target=options.target, allow_missing=options.allow_missing
        )
        parts = prepare.split(data, instances=options.instances, seed=options.seed)
    with clock.phase("train"):
        system = _train(data, parts, options, quiet=quiet)
    with tempfile.TemporaryDirectory(prefix="gatewise-demo-") as folder:
        with clock.phase("pack"):
            bundle = _pack(system, data, parts, options, Path(folder, "bundle"))
        with clock.phase("run"), progress("route", quiet=quiet) as told:
            run = live.run(bundle.path, data.X[parts.test], settings, told)
        expected = _expect(system, data, parts.test)
        for trouble in run.troubles:
            note(f"  {trouble}")
        report = {
            "kind": output.DEMO.kind,
            "dataset": data.name,
            "method": options.method,
            **measure(run.legs, expected.truth, bundle.manifest),
            "transport": {
                "kind": "mqtt",
                "broker": settings.broker_name,
                "link": settings.link.name,
            },
            "expected": compare(run.legs, expected),
            "frontier": _frontier(system),
            "high_cost_model": system.high_cost_model_.kind,
            "data": {
                "rows": len(data.X),
                "features": data.X.shape[1],
                "classes": len(system.classes_),
                "train_rows": len(parts.train) + len(parts.validation),
                "test_rows": len(parts.test),
            },
            "settings": _settings(options, run.processes),
            "workers": run.workers,
            "troubles": run.troubles,
            "seconds": clock.seconds,
            "versions": {"gatewise": version("gatewise"), "python": platform.python_version()}
            | {name: version(name) for name in _VERSIONS},
            "machine": f"{platform.system()} {platform.machine()}",
            "command": options.command(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        output.DEMO.write(
            options.out,
            {
                "bundle": bundle.path,
                "instances.csv": prepare.csv(data, parts.test),
                "frontier.svg": _frontier_plot(system, options.method),
                "report.html": page.render(report),
                "report.json": to_json(report),
            },
        )
    return report


# -- the steps -----------------------------------------------------------------------------


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 3)


def _train(data: Dataset, parts: Parts, options: Options, *, quiet: bool) -> CascadeClassifier:
    costs = data.feature_costs
    if options.costs is not None:
        costs = FeatureCosts.from_file(options.costs, names=data.feature_names)
    picked = {
        name: getattr(options, name)
        for name in ("budget", "max_loss", "offload_rate")
        if getattr(options, name) is not None
    }
    picked = picked or {"max_loss": MAX_LOSS}
    if len(picked) > 1:
        raise InputError(f"give one of --{' and --'.join(picked)}, not both".replace("_", "-"))
    # small devices: with room for everything they would hardly ever need the cloud
    room = {"max_stage_bytes": 1024 * options.stage_kb} if options.method == "staged" else {}
    # Not every method takes missing values; the others need not be told that there are none.
    missing = {"allow_missing": True} if options.allow_missing else {}
    system = methods.cascade(
        options.method,
        feature_costs=costs,
        random_state=options.seed,
        verbose=0 if quiet else 1,
        **picked,
        **room,
        **missing,
    )
    judges = None
    if len(parts.validation):
        judges = prepare.frame(data, parts.validation), data.y[parts.validation]
    return system.fit(prepare.frame(data, parts.train), data.y[parts.train], validation=judges)


def _pack(
    system: CascadeClassifier, data: Dataset, parts: Parts, options: Options, folder: Path
) -> Bundle:
    """Pack, and hold the bundle against the estimator on every row to be routed."""
    from gatewise_export.packing.bundle_writer import pack
    from gatewise_export.packing.verification import verify

    # Runs that meet on one broker must not take each other's answers: another model, another
    # version. The same settings and data give the same model, and so the same version.
    recipe = hashlib.sha256(options.command().encode() + data.X.tobytes()).hexdigest()[:12]
    sample = prepare.frame(data, parts.train[:_SAMPLE_ROWS])
    bundle = pack(system, folder, sample=sample, name=_level(data.name), version=recipe)
    differing = verify(system, bundle, prepare.frame(data, parts.test)).differing_decisions
    if differing:
        raise GatewiseError(
            f"the packed bundle decides otherwise than the trained system on {differing} rows"
        )
    return bundle


def _level(name: str) -> str:
    """A file's name as a topic level."""
    kept = "".join(c if (c.isalnum() and c.isascii()) or c in "-_." else "-" for c in name)[:48]
    return kept or "model"


def _expect(system: CascadeClassifier, data: Dataset, test: NDArray[np.intp]) -> Expected:
    rows = prepare.frame(data, test)
    # A class that only the test part has is no index, so that no answer is right.
    known = {label: i for i, label in enumerate(system.classes_.tolist())}
    return Expected(
        truth=np.array([known.get(label, -1) for label in data.y[test].tolist()]),
        labels=np.searchsorted(system.classes_, system.predict(rows)),
        offload=system.offload(rows),
        cost=system.cost(rows),
        cloud_labels=system.high_cost_model_.labels(data.X[test]),
    )


# -- the report's parts --------------------------------------------------------------------


def _frontier(system: CascadeClassifier) -> dict[str, Any]:
    def point(p: Any) -> dict[str, float]:
        return {"cost": p.cost, "accuracy": p.accuracy, "offload_rate": p.offload_rate}

    return {
        "points": [point(p) for p in system.frontier_.points],
        "hull": [point(p) for p in system.frontier_.hull().points],
        "active": point(system.operating_point_),
        "reference_accuracy": system.frontier_.reference_accuracy,
    }


def _frontier_plot(system: CascadeClassifier, name: str) -> str:
    from gatewise_training.operating_points.frontier import FrontierDisplay

    drawn = io.StringIO()
    figure = FrontierDisplay.from_estimator(system, name=name).figure_
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def _settings(options: Options, processes: int) -> dict[str, Any]:
    shown = asdict(options) | {"broker": options.settings().broker_name}
    del shown["out"]
    link = network.profile(options.link)
    return {
        **{name: value for name, value in shown.items() if value is not None},
        "device_processes": processes,
        "round_trip_ms": f"{link.rtt_ms:g} +- {link.jitter_ms:g}",
    }
