import json
import math

import numpy as np
import pytest
from scipy.stats import binomtest, t

from gatewise.errors import InputError
from gatewise_sim import simulate
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.errors import RunError
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.fleet.answers import ROUTES
from gatewise_sim.fleet.estimate.intervals import Measurement
from gatewise_sim.fleet.money import MONTH
from gatewise_sim.fleet.routes import Routes
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.report.findings import answer, audit_findings
from gatewise_sim.report.model import Report
from gatewise_sim.report.output import SIMULATION
from tests.sim.live.runs import ends_the_process
from tests.sim.report.test_schema import check as check_schema

pytestmark = pytest.mark.slow

LEGS = ["system", "edge_only", "cloud_only", "confidence", "random", "oracle"]
QUICK = Scenario(devices=20, seconds=600.0, workload="poisson:6/min", link="wifi", seed=3)


def report_of(small, **changes) -> dict:
    """The report of a quick simulation of the small system."""
    done = simulate(small.bundle, small.rows, small.truth, scenario=QUICK, **changes)
    return done.report.to_dict()


@pytest.fixture(scope="module")
def whole(small, make_once):
    return make_once("whole-report", lambda _: report_of(small))


def leg(report, key):
    return next(entry for entry in report["legs"] if entry["key"] == key)


def test_the_report_is_as_its_schema_says(whole):
    check_schema(whole)
    assert [entry["key"] for entry in whole["legs"]] == LEGS
    assert whole["kind"] == "gatewise-simulation"
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole  # plain already


def test_the_systems_figures_are_those_of_its_fleet(routes, whole):
    assert whole["calibration"]["kind"] == "assumed"
    settings = Calibration.assumed(routes).apply(QUICK.settings())
    run = simulate_fleet(routes, settings)
    a, system = run.answers, leg(whole, "system")
    assert system["instances"] == whole["instances"] == len(a)
    assert whole["accuracy"]["system"] == pytest.approx((a.label == routes.truth[a.row]).mean())
    assert whole["offload_rate"] == pytest.approx((a.payload_up > 0).mean())
    assert whole["bytes"]["system"] == pytest.approx(int(a.up.sum() + a.down.sum()), abs=1)
    assert system["joules"]["radio"] == pytest.approx(run.joules.mean())
    for i, route in enumerate(ROUTES):
        assert system["answers"][route] == (a.route == i).sum()
    p95 = float(np.percentile(a.latency_ms, 95))
    assert whole["latency_ms"]["system"]["p95"] == pytest.approx(p95, rel=0.02)
    assert sum(whole["breakdown"]["ms"].values()) == pytest.approx(a.latency_ms.mean())
    assert [c["label"] for c in whole["classes"]] == [str(c) for c in range(10)]
    assert sum(c["instances"] for c in whole["classes"]) == len(a)
    assert sum(system["reasons"].values()) == pytest.approx(len(a))
    assert sum(system["histogram"]["all"]) == pytest.approx(len(a))
    parts = whole["breakdown"]["bytes"]
    assert sum(parts.values()) * len(a) == pytest.approx(whole["bytes"]["system"], abs=1)


def test_the_baselines_met_the_same_instances(whole):
    for entry in whole["legs"]:
        assert entry["instances"] == whole["instances"]
        assert sum(entry["answers"][route] for route in ROUTES) == whole["instances"]
        assert entry["answers"]["lost"] == 0
    rate = leg(whole, "system")["offload_rate"]["value"]
    for key in ("confidence", "random"):  # as near as one row's instances
        assert leg(whole, key)["offload_rate"]["value"] == pytest.approx(rate, abs=0.01)
    right = {key: leg(whole, key)["accuracy"]["value"] for key in LEGS}
    assert right["oracle"] == max(right.values())
    assert leg(whole, "edge_only")["offload_rate"]["value"] == 0
    assert leg(whole, "cloud_only")["offload_rate"]["value"] == 1


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_processes(small):
    scenario = QUICK.changed(outages="cloud:+200s-+300s")
    texts = [
        simulate(small.bundle, small.rows, small.truth, scenario=scenario, jobs=n).report.to_json()
        for n in (1, 2)
    ]
    assert texts[0] == texts[1]
    other = simulate(small.bundle, small.rows, small.truth, scenario=scenario, seed=9)
    assert other.report.to_dict()["answers"] != json.loads(texts[0])["answers"]


@pytest.fixture(scope="module")
def halves(make_once):
    return make_once("halves", _halves)


def _halves(folder):
    """A bundle that needs its cloud: half of its rows are an exclusive or, to a linear stage."""
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_export import pack
    from gatewise_training import methods

    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2400, 3)).astype(np.float32)
    y = np.where(np.abs(X[:, 2]) > 0.5, X[:, 2] > 0, X[:, 0] * X[:, 1] > 0).astype(int)
    trained, judges, test = slice(0, 1000), slice(1000, 1400), slice(1400, 2400)
    f0 = ExtraTreesClassifier(30, random_state=0).fit(X[trained], y[trained])
    system = methods.cascade(
        "staged",
        high_cost_model=f0,
        n_stages=1,
        families=("linear",),
        max_loss=0.01,
        random_state=0,
    ).fit(X[trained], y[trained], validation=(X[judges], y[judges]))
    return pack(system, folder / "bundle", sample=X[:16]), X[test], y[test]


def test_an_outage_in_the_middle(halves):
    begin, end = 200.0, 400.0
    scenario = QUICK.changed(deadline_ms=300.0)
    usual, report = (
        simulate(*halves, scenario=scenario, outages=outages).report.to_dict()
        for outages in ("", "cloud:+200s-+400s")
    )
    assert usual["faults"] == []
    assert report["faults"] == [{"what": "cloud", "begin": begin, "end": end, "count": 1}]
    # every instance has one answer
    assert report["instances"] == usual["instances"]
    assert sum(report["answers"][route] for route in ROUTES) == report["instances"]
    assert sum(b["instances"] for b in report["timeline"]) == report["instances"]
    for b in report["timeline"]:
        assert sum(b[route] for route in ROUTES) == b["instances"]
    # it falls to what the devices alone know, and comes back
    during = [b for b in report["timeline"] if begin <= b["begin"] and b["end"] <= end]
    before = [b for b in report["timeline"] if b["end"] <= begin]
    after = [b for b in report["timeline"] if b["begin"] >= end + 30]  # breakers close again

    def right(bins, name="accuracy"):
        n = sum(b["instances"] for b in bins)
        assert n > 150
        return sum(b[name] * b["instances"] for b in bins) / n

    assert sum(b["cloud"] for b in during) == 0
    assert all(b["accuracy"] == pytest.approx(b["edge_accuracy"]) for b in during)
    assert sum(b["fallback"] for b in during) > 50
    assert right(during) == pytest.approx(right(during, "edge_accuracy"))
    assert right(before) > right(during) + 0.2
    assert right(after) > right(during) + 0.2
    assert sum(b["cloud"] for b in after) > 0
    # better choices are better
    right_of = {key: leg(usual, key)["accuracy"]["value"] for key in LEGS}
    assert right_of["confidence"] > right_of["random"] + 0.05 > right_of["edge_only"] + 0.1
    assert right_of["oracle"] == max(right_of.values())
    # the device alone does not notice
    for key in ("answers", "bytes", "reasons"):
        assert leg(report, "edge_only")[key] == leg(usual, "edge_only")[key]
    assert report["accuracy"]["edge_only"] == usual["accuracy"]["edge_only"]


def test_the_bill(small, whole, tmp_path):
    assert whole["money"] is None
    assert all(entry["money"] is None for entry in whole["legs"])
    prices = tmp_path / "prices.toml"
    prices.write_text(
        "currency = 'CHF'\nper_mb = 0.5\nper_worker_hour = 0.1\nper_joule = 1e-3\n"
        "per_feature_unit = 1e-4\nper_million_requests = 7\nper_device_month = 0.25\n"
    )
    report = report_of(small, prices=str(prices), workers=2)
    months = MONTH / QUICK.seconds
    for entry in report["legs"]:
        bill, n = entry["money"], entry["instances"]
        assert bill["currency"] == "CHF"
        assert bill["devices"] == 20 * 0.25
        workers = 0 if entry["key"] == "edge_only" else 2
        assert bill["workers"] == pytest.approx(workers * 0.1 * MONTH / 3600)
        assert bill["features"] == pytest.approx(1e-4 * entry["feature_cost"]["value"] * n * months)
        asked = (
            sum(entry["answers"][r] for r in ("cloud", "fallback")) + entry["answers"]["retries"]
        )
        assert bill["requests"] == pytest.approx(7e-6 * asked * months, rel=0.02)
        mqtt = n * (entry["bytes"]["up"]["value"] + entry["bytes"]["down"]["value"])
        # IP beside TCP's payload: 40 bytes a packet, two packets a message each way
        assert bill["data"] == pytest.approx(0.5e-6 * (mqtt + 160 * asked) * months, rel=0.02)
        a_day = entry["joules_per_device_day"]
        assert bill["energy"] == pytest.approx(1e-3 * 20 * a_day * MONTH / 86_400)
        assert bill["total"] == pytest.approx(
            sum(v for k, v in bill.items() if k not in ("currency", "total"))
        )
    assert report["money"] == report["legs"][0]["money"]


def test_a_fleet_that_never_offloads_pays_no_workers(small, tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text("per_worker_hour = 1")
    found = report_of(small, prices=str(prices), policy="edge-only")
    assert leg(found, "system")["money"] == leg(found, "edge_only")["money"]
    assert leg(found, "cloud_only")["money"]["workers"] > 700


def test_energy_of_the_device(small, whole, tmp_path):
    (tmp_path / "pi.toml").write_text(
        "idle_w = 0.01\nbattery_wh = 20\nstage_j = 0.001\nfeature_j = 0.002\n"
    )
    report = report_of(small, device_energy=str(tmp_path / "pi.toml"))
    for entry, plain in zip(report["legs"], whole["legs"], strict=True):
        joules = entry["joules"]
        assert joules["radio"] == plain["joules"]["radio"]
        assert plain["joules"]["features"] == plain["joules"]["stages"] == 0
        assert plain["battery_days"] is None
        active = sum(joules.values()) * entry["instances"] / 20 * 86_400 / 600
        idle = 0.01 * 86_400
        assert entry["joules_per_device_day"] == pytest.approx(active + idle, rel=1e-9)
        assert entry["battery_days"] == pytest.approx(20 * 3600 / (active + idle), rel=1e-9)
    edge = leg(report, "edge_only")["joules"]
    assert edge["radio"] == 0
    assert edge["stages"] >= 0.001
    # features have uniform price 1 here, so that joules are twice a thousandth of their cost
    assert edge["features"] == pytest.approx(0.002 * report["feature_cost"]["edge_only"])
    # a request carries all features; no stage runs before it
    cloud = leg(report, "cloud_only")["joules"]
    assert cloud["stages"] == 0
    assert cloud["features"] == pytest.approx(0.002 * report["feature_cost"]["cloud_only"])
    system = report["breakdown"]["joules"]
    assert system["idle"] == pytest.approx(0.01 * 600 * 20 / report["instances"])


def test_a_mix_that_drifts(small):
    mix = "steps,0s=1/1/0/0/0/0/0/0/0/0,5min=0/0/0/0/0/0/0/0/1/1"
    report = report_of(small, mix=mix, baselines=False)
    assert [c["label"] for c in report["classes"] if c["instances"]] == ["0", "1", "8", "9"]
    with pytest.raises(InputError, match="need the rows' labels"):
        simulate(small.bundle, small.rows, scenario=QUICK, mix=mix)
    strange = small.truth.copy()
    strange[0] = 99
    with pytest.raises(InputError, match="mix: 1 rows have a label that is no class"):
        simulate(small.bundle, small.rows, strange, scenario=QUICK, mix=mix)


def test_audits_find_that_the_data_changed(small):
    """Of nines, which come alone from then on, the device gets more wrong than it promised."""
    mix = f"steps,0s={'1/' * 9}1,5min={'0/' * 9}1"
    plain = report_of(small, mix=mix, baselines=False)
    done = simulate(small.bundle, small.rows, small.truth, scenario=QUICK, mix=mix, audit=0.2)
    report = done.report.to_dict()
    system = leg(report, "system")
    audit = system["audit"]
    assert Report.from_dict(report).to_dict() == report
    # No answer is another one; the bytes, and the load of the worker, are what audits add.
    for key in ("accuracy", "offload_rate", "feature_cost"):
        assert system[key] == leg(plain, "system")[key]
    assert audit["sent"] == audit["compared"] == report["answers"]["audits"]
    assert 0.15 < audit["sent"] / report["answers"]["edge"] < 0.25
    assert audit["promised"] < 1
    before, after = (leg(r, "system")["bytes"] for r in (plain, report))
    added = sum(after[way]["value"] - before[way]["value"] for way in ("up", "down"))
    assert added == pytest.approx(audit["bytes"], rel=0.01)
    assert system["workers"]["audits"] == audit["sent"]
    assert system["utilisation"] > 1.5 * leg(plain, "system")["utilisation"]
    assert system["joules"]["radio"] > leg(plain, "system")["joules"]["radio"]
    assert all("audit" not in leg(report, key) for key in LEGS[1:])
    assert audit["change"] == 300.0
    (fleet,) = audit["alarms"]
    assert (fleet["raised"], fleet["early"]) == (1, 0)
    assert 20 < fleet["instances"] < 500
    assert f"{fleet['instances']:.0f} instances of all devices after the data changed at 5 min" in (
        audit_findings(done.report)
    )


def test_without_labels_nothing_is_said_about_accuracy_and_an_unknown_class_is_never_right(small):
    report = simulate(small.bundle, small.rows, scenario=QUICK).report.to_dict()
    assert report["accuracy"] == {"system": None, "edge_only": None, "cloud_only": None}
    assert [entry["key"] for entry in report["legs"]] == LEGS[:-1]
    for part in ("legs", "timeline", "classes"):
        assert all(entry["accuracy"] is None for entry in report[part])
    strange = small.truth.astype(object)
    strange[:100] = "other"
    report = simulate(
        small.bundle, small.rows, strange, scenario=QUICK, baselines=False, workload="periodic:1s"
    ).report.to_dict()
    assert report["accuracy"]["system"] < 1 - 0.8 * 100 / len(strange)
    assert "100 of 300 rows have a label that the bundle does not know" in report["notes"][0]
    assert sum(c["instances"] for c in report["classes"]) < report["instances"]


def test_the_summary_and_the_folder(small, tmp_path, monkeypatch):
    simulation = simulate(small.bundle, small.rows, small.truth, scenario=QUICK)
    assert simulation.summary.endswith(".")
    assert "\n" not in simulation.summary
    assert repr(simulation) == f"<Simulation: {simulation.summary}>"
    simulation.write(tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == set(SIMULATION.files)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == simulation.report.to_dict()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds other files"):
        simulation.write(tmp_path / "mine")
    # what was used can be used again
    again = report_of(small, calibration=str(tmp_path / "out" / "calibration.json"))
    assert again["legs"] == simulation.report.to_dict()["legs"]
    assert again["calibration"]["kind"] == "calibration.json"


def test_no_figure_is_surer_than_its_rows(small):
    """Any number of instances drawn from 40 rows says little about others."""
    rows, truth = small.rows[:40], small.truth[:40]
    report = simulate(small.bundle, rows, truth, scenario=QUICK.changed(devices=200)).report
    assert report.instances > 10_000
    system = report.system
    for found in (system.accuracy, system.offload_rate):
        low, high = binomtest(round(40 * found.value), 40).proportion_ci(method="wilson")
        assert found.high - found.low == pytest.approx(high - low, rel=0.1)
    routes = Routes.from_bundle(small.bundle, rows, truth)
    costs = routes.cost
    for found, each in ((system.cost, costs), (system.bytes.up, routes.offload)):
        half = t.ppf(0.975, 39) * each.std() / each.mean() / 40**0.5
        assert (found.high - found.low) / 2 / found.value == pytest.approx(half, rel=0.1)
    # Nearly a quarter of the rows are sent: more than 5 % of others surely are.
    p95 = system.latency_ms["p95"]
    assert p95.low > report.policy("edge_only").latency_ms["p95"].high
    # What a policy fixes is no matter of rows.
    for key, rate in (("edge_only", 0.0), ("cloud_only", 1.0)):
        assert report.policy(key).offload_rate == Measurement(rate, rate, rate)


def test_a_deadline_that_no_offload_meets(small):
    chosen = QUICK.changed(deadline_ms=20.0, link="4g")
    late = simulate(small.bundle, small.rows, scenario=chosen).report
    assert answer(late)[0].endswith("answer of the cloud comes within the deadline of 20 ms")
    (advice,) = [note for note in late.notes if "--deadline-ms" in note]
    enough = float(advice.split("--deadline-ms ")[1].split()[0])
    chosen = chosen.changed(deadline_ms=enough)
    done = simulate(small.bundle, small.rows, scenario=chosen).report
    assert done.system.answers.cloud > 0.9 * (
        done.system.answers.cloud + done.system.answers.fallback
    )
    assert not [note for note in done.notes if "--deadline-ms" in note]


def test_an_outage_that_never_comes_is_told(small):
    noon = QUICK.changed(outages="cloud:12:00-12:10,link:+20min-+30min", baselines=False)
    late = noon.changed(day_start="11:55", seconds=1800.0)
    for scenario, parts in ((noon, ["cloud", "link"]), (late, [])):
        notes = simulate(small.bundle, small.rows, scenario=scenario).report.notes
        assert [n.split()[4] for n in notes if n.startswith("An outage of the")] == parts


def test_no_arrival_is_told(small):
    with pytest.raises(InputError, match="no instance came"):
        simulate(small.bundle, small.rows, devices=1, seconds=1.0, workload="poisson:1/day")


@pytest.mark.usefixtures("nothing_left")
def test_live_at_another_operating_point(small):
    scenario = Scenario(
        devices=6,
        seconds=5.0,
        workload="poisson:2/s",
        link="wifi",
        deadline_ms=4000.0,
        engine="live",
        offload_rate=0.3,
        seed=1,
    )
    report = simulate(small.bundle, small.rows, small.truth, scenario=scenario).report.to_dict()
    assert report["engine"] == "live"
    assert [entry["engine"] for entry in report["legs"]] == ["live"] + ["virtual"] * 5
    assert report["transport"] == {"kind": "mqtt", "broker": "mosquitto", "link": "wifi"}
    assert report["answers"]["lost"] == 0
    assert report["troubles"] == []
    # every row is decided as virtual time has it
    assert report["checked"]["differing"] == {"labels": 0, "routes": 0, "costs": 0}
    fallbacks = report["answers"]["fallback"]
    assert report["checked"]["compared"] == report["instances"] - fallbacks > 30
    live, virtual = report["twin"]["live"], report["twin"]["virtual"]
    assert live["offload_rate"] == virtual["offload_rate"]
    assert set(live) == set(virtual)
    if not fallbacks:
        assert live["accuracy"] == virtual["accuracy"]
        assert math.isclose(live["cost"], virtual["cost"], rel_tol=1e-9)
    assert report["frontier"]["active"]["offload_rate"] <= 0.3
    assert report["run"]["devices"]["sent"] > 0
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_a_live_run_that_answers_nothing_says_why(small):
    with pytest.raises(RunError, match="device process 1: ended with status 3"):
        report_of(
            small, engine="live", seconds=1.0, policy=ends_the_process, workload="poisson:5/s"
        )
