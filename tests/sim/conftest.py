"""What the tests of the simulator share: a small system, made-up routes, processes, a browser."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gatewise.costs import CloudPrices
from tests.support.once import MakeOnce
from tests.support.processes import Processes


def _small(folder: Path) -> SimpleNamespace:
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
    return SimpleNamespace(
        system=system,
        rows=data.X[test].astype(np.float32),
        truth=data.y[test],
        bundle=pack(system, folder / "bundle", sample=data.X[train[:16]]),
    )


@pytest.fixture(scope="session")
def small(make_once: MakeOnce) -> SimpleNamespace:
    """A small real system, its bundle, and rows that it has not seen; classes are indices."""
    return make_once("small", _small)


@pytest.fixture(scope="session")
def made_up() -> Callable[..., Any]:
    """Give :func:`tests.support.routes.made_up_routes`, loaded when a test wants it."""
    from tests.support.routes import made_up_routes

    return made_up_routes


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
