"""What every test relies on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# A shell that starts the tests in the background has them ignore SIGINT, and so would every
# process that they start; Ctrl-C is among the things tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def random_trees() -> Callable[..., tuple[Any, Any]]:
    """A function that gives random trees as a TreeEnsemble, and rows that meet their thresholds.

    Values differ widely in size, so that another order of summation gives other bits; rows hold
    the thresholds themselves, zeros of both signs and NaN.
    """
    from gatewise.models.trees import TreeEnsemble

    def grow(seed: int, *, mixed: bool = False) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        n_features, n_outputs = int(rng.integers(1, 7)), int(rng.integers(1, 5))
        marks = np.append(rng.normal(0, 1, 6), [0.0, -0.0]).astype(np.float32)
        nodes: list[tuple[int, int, int]] = []  # column, left, right

        def node(depth: int) -> int:
            here = len(nodes)
            nodes.append((-1, -1, -1))
            if depth and rng.random() < 0.8:
                column = int(rng.integers(n_features))
                nodes[here] = (column, node(depth - 1), node(depth - 1))
            return here

        roots = [node(int(rng.integers(0, 5))) for _ in range(int(rng.integers(1, 12)))]
        feature, left, right = np.array(nodes, np.int32).T
        output = rng.integers(0, n_outputs, len(roots))
        if mixed:
            output[rng.random(len(roots)) < 0.5] = -1
        elif rng.random() < 0.5:
            output[:] = -1
        wide = n_outputs if (output < 0).any() else 1
        signs = rng.choice([-1, 0.0, -0.0, 1], (len(nodes), wide))
        size = 10.0 ** rng.integers(-6, 6, (len(nodes), wide))
        trees = TreeEnsemble(
            feature=feature,
            threshold=rng.choice(marks, len(nodes)),
            left=left,
            right=right,
            nan_left=rng.random(len(nodes)) < 0.5,
            value=(signs * rng.random(size.shape) * size).astype(np.float32),
            roots=np.array(roots, np.int32),
            output=output.astype(np.int32),
            base=rng.choice(np.float32([0, -0.0, 0.3, -7e4]), n_outputs),
            n_features=n_features,
        )
        rows = rng.choice(np.append(marks, np.float32([np.nan, 1e6])), (40, n_features))
        return trees, np.append(rows, rng.normal(0, 1, rows.shape), axis=0).astype(np.float32)

    return grow


#: Files that fit models or start processes in nearly every test: too long for `make test-fast`.
SLOW_FILES = {
    "benchmarks/test_bench_peers.py",
    "benchmarks/test_bench_ranking.py",
    "cloud/test_cloud_broker.py",
    "cloud/test_cloud_gateway.py",
    "cloud/test_cloud_supervisor.py",
    "cloud/test_cloud_worker.py",
    "edge/service/test_cli.py",
    "edge/link/test_mqtt.py",
    "edge/test_with_cloud.py",
    "edge/update/test_edge_update_updater.py",
    "export/test_export_c99_systems.py",
    "export/test_export_cli.py",
    "export/test_export_friendly.py",
    "export/test_export_onnx_reader.py",
    "export/test_export_pack.py",
    "export/test_export_signing.py",
    "export/test_export_skl2onnx_converters.py",
    "export/test_export_tiers.py",
    "export/test_export_verify.py",
    "security/test_security_announcements.py",
    "security/test_security_broker.py",
    "sim/test_sim_doctor.py",
    "sim/test_sim_fleet.py",
    "sim/test_sim_fleet_estimate.py",
    "sim/test_sim_fleet_scale.py",
    "sim/test_sim_live.py",
    "sim/test_sim_workload.py",
    "training/test_adapt_certificates.py",
    "training/test_adapt_methods.py",
    "training/test_adapt_synthetic.py",
    "training/test_cascades.py",
    "training/test_cegb_models.py",
    "training/test_lazy_stages.py",
    "training/test_candidate_points.py",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of whole files out of the fast suite."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).as_posix() in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
