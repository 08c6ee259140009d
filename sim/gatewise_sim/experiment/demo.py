"""The demo: train and pack a system, then let real processes answer each test row once."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from gatewise.errors import GatewiseError, InputError
from gatewise_export.training_result import TrainingRun
from gatewise_export.training_run import train_bundle
from gatewise_export.training_settings import TrainingSettings
from gatewise_sim.experiment.demo_settings import DemoSettings
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.run import prepare_experiment, run_scenario
from gatewise_sim.experiment.simulation import settings_text
from gatewise_sim.live.run import check_live
from gatewise_sim.report.document import DEMO_KIND, Report
from gatewise_sim.report.output import DEMO, TIMINGS_FILE
from gatewise_sim.scenario import Scenario
from gatewise_training.data import datasets

#: Share of the rows that the fleet answers; the others train the system.
_TEST_SHARE: Final = 0.3
#: Bound on the loss of accuracy. It is not lower because the accuracy on 540 test rows is known to
#: about half a percent only.
_MAX_LOSS: Final = 0.005
#: Bytes of the stages. With more memory they would hardly ever need the cloud.
_MAX_BYTES: Final = 64 * 1024
#: Longest time (ms) to an answer.
_DEADLINE_MS: Final = 2000.0
#: Time between two instances of a device. It is short because the demo should take seconds, and it
#: is long enough that no device is still busy with the previous instance.
_INTERVAL_SECONDS: Final = 0.04


def training_settings(settings: DemoSettings, out: Path) -> TrainingSettings:
    """Make the settings of the demo's training, which writes the bundle to `out`."""
    names = datasets.bundled_names()
    if settings.dataset not in names:
        raise InputError(
            f"dataset {settings.dataset!r} is not one of {', '.join(names)}: for a table of your "
            "own use gatewise train and gatewise simulate --engine live"
        )
    parameters: dict[str, Any] = {}
    if settings.method == "staged":
        parameters = {"max_bytes": _MAX_BYTES, **_make_fast_search()}
    return TrainingSettings(
        dataset=settings.dataset,
        out=out,
        method=settings.method,
        max_loss=(str(_MAX_LOSS),),
        parameters=parameters,
        needs_cloud=True,
        seed=settings.seed,
        test_size=_TEST_SHARE,
        test_rows=settings.instances,
    )


def _make_scenario(settings: DemoSettings, **workload: Any) -> Scenario:
    return Scenario(
        engine="live",
        devices=settings.devices,
        link=settings.link,
        deadline_ms=_DEADLINE_MS,
        seed=settings.seed,
        **workload,
    )


def run_demo(settings: DemoSettings) -> Report:
    """Train, pack and verify a system with `settings`, run it over MQTT, and write its report.

    Raises GatewiseError, and writes nothing, for bad input or if a process does not start.
    """
    from gatewise_sim.report.run_page import report_files

    DEMO.check(settings.out)
    check_live(_make_scenario(settings))
    with tempfile.TemporaryDirectory(prefix="gatewise-demo-") as folder:
        # train and pack
        training_run = train_bundle(training_settings(settings, Path(folder, "bundle")))
        if training_run.troubles:
            raise GatewiseError("; ".join(training_run.troubles))
        if n_differing := training_run.verification.differing_decisions:
            raise GatewiseError(
                f"the packed bundle and the trained system decide differently on {n_differing} rows"
            )
        # a workload with every test row once
        arrivals_path = Path(folder, "arrivals.csv")
        instances_path = Path(folder, "instances.csv")
        n_rows = len(training_run.split.test)
        arrivals_path.write_text(_write_arrivals(n_rows, settings.devices))
        instances_path.write_text(training_run.test_csv())
        # add one round after the last row, so that the last answers are within the run
        n_rounds = -(-n_rows // settings.devices) + 1
        scenario = _make_scenario(
            settings, workload=f"replay:{arrivals_path}", time=f"{n_rounds * _INTERVAL_SECONDS:g}s"
        )
        label_column = instances_path.read_text().partition("\n")[0].rpartition(",")[2]
        rows = Rows.load(str(instances_path), training_run.bundle.manifest, target=label_column)
        experiment = prepare_experiment(training_run.bundle, rows, scenario)
        # the live run, and the other policies in virtual time
        report = run_scenario(experiment, settings.command())
        report = _add_demo_fields(report, settings, training_run)
        # write all files at once, so that the folder is never incomplete
        simulated_scenario = scenario.changed(workload="poisson:1/min", time=None)
        DEMO.write(
            settings.out,
            {
                **report_files(report),
                TIMINGS_FILE: settings_text(report, simulated_scenario),
                "arrivals.csv": arrivals_path.read_text(),
                "bundle": training_run.bundle.path,
                "frontier.svg": _draw_frontier(training_run.system, settings.method),
                "instances.csv": instances_path.read_text(),
            },
        )
    return report


def _make_fast_search() -> dict[str, Any]:
    """Make the parameters of a search with few stages and a kernel machine, which takes seconds.

    On the data sets of scikit-learn it is nearly as accurate as the full search.
    """
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler
    from sklearn.svm import SVC

    kernel_machine = make_pipeline(MinMaxScaler(), SVC(C=10.0))
    return {
        "high_cost_model": CalibratedClassifierCV(kernel_machine, ensemble=False, cv=2),
        "n_stages": 4,
        "families": ("linear", "svm"),
    }


def _write_arrivals(n_rows: int, n_devices: int) -> str:
    """Write a trace in which every row arrives once, at each device in turn at equal intervals."""
    lines = ["time,device,row"]
    for row in range(n_rows):
        round_number, device = divmod(row, n_devices)
        time = (round_number + device / n_devices) * _INTERVAL_SECONDS
        lines.append(f"{time:.6f},{device},{row}")
    return "\n".join(lines) + "\n"


def _add_demo_fields(report: Report, settings: DemoSettings, training_run: TrainingRun) -> Report:
    """Add the settings, the data set and the times of the training to the live run's report."""
    data_set = training_run.data
    split = training_run.split
    demo_settings = {
        name: str(value) if isinstance(value, Path) else value
        for name in settings.__struct_fields__
        if name != "out" and (value := getattr(settings, name)) is not None
    }
    live_figures = report.run or {}
    high_cost_model = training_run.system.high_cost_model_
    assert high_cost_model is not None  # training needs a cloud here
    return msgspec.structs.replace(
        report,
        kind=DEMO_KIND,
        dataset=data_set.name,
        method=settings.method,
        settings=report.settings | demo_settings | {"workload": "each row once"},
        data={
            "rows": len(data_set.X),
            "features": data_set.X.shape[1],
            "classes": len(training_run.system.classes_),
            "train_rows": len(split.training) + len(split.validation),
            "test_rows": len(split.test),
        },
        # the training reports the model of the fast search as "given"
        high_cost_model="svm" if high_cost_model.kind == "given" else high_cost_model.kind,
        seconds={**training_run.seconds, "run": live_figures.get("seconds", 0.0)},
    )


def _draw_frontier(system: Any, method_name: str) -> str:
    from gatewise_training.views.frontier_display import FrontierDisplay

    svg = io.StringIO()
    display = FrontierDisplay.from_estimator(system, name=method_name)
    display.figure_.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()
