"""What the tests of the simulator share: a small system, made-up routes, processes, a browser."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gatewise.costs import CloudPrices
from tests.support.once import MakeOnce
from tests.support.processes import Processes, run_here


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
        effort="low",
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


def _tiered(folder: Path) -> SimpleNamespace:
    from gatewise_export import Bundle
    from tests.support.tiers import pack_tiers, two_classes

    X, y = two_classes()
    tiers = {"device": 1, "gateway": 1, "cloud": None}
    system, path = pack_tiers(folder / "bundle", X, y, tiers)
    return SimpleNamespace(system=system, rows=X[500:], truth=y[500:], bundle=Bundle.open(path))


@pytest.fixture(scope="session")
def tiered(make_once: MakeOnce) -> SimpleNamespace:
    """As `small`, with stages on device, gateway and in the cloud that each answer some rows."""
    return make_once("tiered", _tiered)


@contextlib.contextmanager
def _small_fits() -> Iterator[None]:
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_training import methods

    forest = {"high_cost_model": ExtraTreesClassifier(30, random_state=0)}
    small: dict[str, dict[str, Any]] = {
        "staged": forest | {"n_stages": 2, "effort": "low", "max_trees": 20},
        "adapt-lin": forest | {"p_full": (0.3,), "penalties": (0.05,), "n_starts": 1},
        "confidence": forest | {"low_cost_model": "linear", "n_subsets": 3},
    }
    make = methods.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            methods, "make", lambda name, **how: make(name, **(small.get(name, {}) | how))
        )
        yield


@pytest.fixture
def small_fits() -> Iterator[None]:
    """Short fits by the commands that this process runs: the way is tested, not the fit."""
    with _small_fits():
        yield


@pytest.fixture(scope="session")
def quick_demo(make_once: MakeOnce) -> SimpleNamespace:
    """A real demo of 90 instances: its arguments, its folder, and what it printed."""

    def make(folder: Path) -> SimpleNamespace:
        words = (
            "demo", "--dataset", "breast_cancer", "--method", "confidence", "--link", "none",
            "--instances", "90", "--devices", "2", "--json",
        )  # fmt: skip
        with _small_fits():
            done = run_here(*words, folder=folder)
        assert done.returncode == 0, done.stderr
        return SimpleNamespace(words=words, folder=folder / "demo-out", printed=done.stdout)

    return make_once("quick-demo", make)


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
