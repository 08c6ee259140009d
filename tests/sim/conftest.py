"""A made-up run for the tests of report and page: two stages and a cloud, 200 rows."""

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gatewise.costs import CloudPrices
from gatewise_export.bundle.manifest import (
    CloudSpec,
    FeatureSpec,
    FileSpec,
    Manifest,
    OperatingPointSpec,
    StageSpec,
)
from gatewise_sim.live.outcome import Outcome
from gatewise_sim.report.legs import Expected, Leg
from tests.support.processes import Processes

ROWS = 200
NAMES = tuple(f"pixel_{k // 8}_{k % 8}" for k in range(64))


@pytest.fixture
def manifest() -> Manifest:
    stages = (
        StageSpec("stage_0.onnx", NAMES[:6], 10, "softmax", "margin", 10),
        StageSpec("stage_1.onnx", NAMES[:20], 10, "softmax", "margin", 10),
    )
    return Manifest(
        name="digits",
        version="1",
        created="2026-01-01T00:00:00Z",
        classes=tuple(range(10)),
        link="softmax",
        features=tuple(FeatureSpec(n, 1.0) for n in NAMES),
        groups=(),
        prices=CloudPrices(request=2.0),
        missing={"stages": "refused", "cloud": "refused"},
        every_stage=stages,
        chains=((0, 1),),
        cloud=CloudSpec("cloud.onnx", NAMES[2:], "classifier", "softmax"),
        operating_points=(OperatingPointSpec((0.5, 0.7), 20.0, 0.98, 0.2),),
        active=0,
        files={"cloud.onnx": FileSpec("0" * 64, 10)},
    )


def outcome(row: int, route: str, stage: int, label: int, cost: float, ms: float) -> Outcome:
    asked = route != "edge"
    return Outcome(
        row=row,
        route=route,
        stage=stage,
        label=label,
        cost=cost + 2.0 * (route == "cloud"),
        feature_cost=cost,
        latency_ms=ms,
        up=400 if asked else 0,
        down=150 if route == "cloud" else 0,
        payload_up=350 if asked else 0,
        payload_down=120 if route == "cloud" else 0,
        device=f"demo-{row % 4}",
        reason="",
    )


@pytest.fixture
def truth() -> np.ndarray:
    return np.arange(ROWS) % 10


@pytest.fixture
def legs(truth) -> dict[str, Leg]:
    rng = np.random.default_rng(0)
    slow = lambda: float(rng.lognormal(2.4, 0.25))  # noqa: E731
    fast = lambda: float(rng.lognormal(-2.4, 0.4))  # noqa: E731

    def system(i: int) -> Outcome:
        wrong = int(truth[i] + 1) % 10 if i in (3, 50, 120) else int(truth[i])
        if i < 120:
            return outcome(i, "edge", 0, wrong, 6.0, fast())
        if i < 160:
            return outcome(i, "edge", 1, wrong, 20.0, 2 * fast())
        return outcome(i, "cloud", 2, wrong, 64.0, slow())

    def edge_only(i: int) -> Outcome:
        return outcome(i, "edge", 1, int(truth[i] + (i % 12 == 0)) % 10, 20.0, 2 * fast())

    def cloud_only(i: int) -> Outcome:
        return outcome(i, "cloud", 2, int(truth[i] + (i % 100 == 0)) % 10, 62.0, slow())

    every = {"system": system, "edge_only": edge_only, "cloud_only": cloud_only}
    return {k: Leg([f(i) for i in range(ROWS)], ROWS, seconds=1.5) for k, f in every.items()}


@pytest.fixture
def expected(legs, truth) -> Expected:
    return Expected(
        truth=truth,
        labels=np.array([o.label for o in legs["system"].outcomes]),
        offload=np.array([o.route == "cloud" for o in legs["system"].outcomes]),
        cost=np.array([o.cost for o in legs["system"].outcomes]),
        cloud_labels=np.array([o.label for o in legs["cloud_only"].outcomes]),
    )


@pytest.fixture
def report(legs, truth, manifest, expected) -> dict:
    from gatewise_sim.report.legs import compare, measure

    costs = [2, 5, 6, 8, 10, 12, 15, 18, 20, 24, 30, 40, 64]
    points = [
        {"cost": c, "accuracy": 0.99 - 0.6 * 2.0 ** (-c / 4), "offload_rate": c / 64} for c in costs
    ]
    return {
        "dataset": "digits",
        "method": "staged",
        **measure(legs, truth, manifest),
        "transport": {"kind": "mqtt", "broker": "embedded", "link": "wifi"},
        "expected": compare(legs, expected),
        "frontier": {"points": points, "hull": points[::2], "active": points[9]},
        "workers": [{"answered": 240, "instances": 240, "batches": 200, "model_us": 96_000}, {}],
        "settings": {"devices": 4, "workers": 1, "deadline_ms": 2000, "seed": 0},
        "data": {"rows": 1797, "features": 64, "classes": 10, "train_rows": 1597},
        "high_cost_model": "svm",
        "seconds": {"train": 12.3, "pack": 1.2, "system": 1.5},
        "versions": {"gatewise": "0.1.0", "python": "3.11.7"},
        "command": "gatewise demo --dataset digits --seed 0",
        "created": "2026-01-01T00:00:00Z",
    }


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> SimpleNamespace:
    """A small real system, its bundle, and rows that it has not seen; classes are indices."""
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_export import pack
    from gatewise_training import methods
    from gatewise_training.data import datasets

    data = datasets.load("digits")
    train, test = np.arange(0, 1200, 2), np.arange(1, 600, 2)
    f0 = ExtraTreesClassifier(30, random_state=0).fit(data.X[train], data.y[train])
    system = methods.cascade(
        "staged",
        high_cost_model=f0,
        cloud_prices=CloudPrices(request=0.3, byte=0.01),
        n_stages=2,
        families=("linear",),
        offload_rate=0.4,
        random_state=0,
    ).fit(data.X[train], data.y[train])
    folder = tmp_path_factory.mktemp("small") / "bundle"
    return SimpleNamespace(
        system=system,
        rows=data.X[test].astype(np.float32),
        truth=data.y[test],
        bundle=pack(system, folder, sample=data.X[train[:16]]),
    )


@pytest.fixture(scope="session")
def made_up() -> Callable[..., Any]:
    """A function that makes routes: `n` rows, the first `hard` of which are offloaded.

    The truth is class 1 everywhere; so say the cloud, and the device of rows that it keeps.
    """
    from gatewise_edge.stages.plan import StagePlan
    from gatewise_sim.fleet.messages import Sizes
    from gatewise_sim.fleet.routes import Routes

    def make(n: int = 10, hard: int = 10) -> Routes:
        offload = np.arange(n) < hard
        plan = StagePlan(
            model="m",
            version="1",
            names=("a", "b"),
            classes=(0, 1),
            n_stages=1,
            n_here=1,
            tiers=("device",),
            stage_inputs=np.array([0]),
            request_inputs=np.array([0, 1]),
            has_cloud=True,
            stages_take_nan=False,
            cloud_takes_nan=False,
            offload_price=0.5,
            gateway_price=0.25,
            request_price=0.125,
        )
        return Routes(
            plan=plan,
            sizes=Sizes.from_plan(plan, exits=False),
            truth=np.ones(n, np.int64),
            exit=np.zeros(n, np.int64),
            offload=offload,
            local_route=np.zeros(n, np.int64),
            local_label=np.where(offload, 0, 1),
            local_cost=np.ones(n),
            cloud_label=np.ones(n, np.int64),
            cloud_stage=np.ones(n, np.int64),
            asked_cost=np.full(n, 3.0),
            alone_cost=3.0,
            score=np.linspace(0, 1, n, dtype=np.float32),
            sets=np.array([[True, False], [True, True]]),
            local_set=np.zeros(n, np.int64),
            asked_set=np.ones(n, np.int64),
            threshold=float(np.float32((hard - 0.5) / max(n - 1, 1))),
            confidence=np.linspace(0.5, 1, n, dtype=np.float32),
        )

    return make


@pytest.fixture(scope="session")
def poisson() -> Callable[..., Any]:
    """A function that gives arrivals: Poisson with `rate` a second over all devices."""

    def of(rate: float, rows: int) -> Any:
        def arrivals(devices: int, seconds: float, rng: np.random.Generator) -> Any:
            for begin in np.arange(0.0, seconds, 60.0):
                end = min(begin + 60.0, seconds)
                n = rng.poisson(rate * (end - begin))
                times = np.sort(rng.uniform(begin, end, n))
                yield times, rng.integers(0, devices, n), rng.integers(0, rows, n)

        return arrivals

    return of


@pytest.fixture(scope="session")
def processes() -> Processes:
    return Processes()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser without a screen; each page that a test opens it also closes."""
    from tests.sim.chromium import Chromium, find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("needs a chromium or chrome on the path: apt install chromium")
    browser = Chromium(program)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def simulated(small) -> Callable[..., dict]:
    """A function that gives the report of a real, small simulation, with settings changed."""
    from gatewise_sim.experiment.simulation import simulate

    known: dict[str, dict] = {}

    def report(*, labels: bool = True, **changes: Any) -> dict:
        asked = {"devices": 20, "seconds": 600.0, "workload": "poisson:6/min", "workers": 1}
        asked |= changes
        key = repr((labels, sorted(asked.items())))
        if key not in known:
            truth = small.truth if labels else None
            known[key] = simulate(small.bundle, small.rows, truth, jobs=1, **asked).report.to_dict()
        return copy.deepcopy(known[key])

    return report
