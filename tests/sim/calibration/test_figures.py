"""Calibrations: what is assumed, files that are read strictly, settings that get the figures."""

import json
from dataclasses import replace

import pytest

from gatewise.errors import InputError
from gatewise_sim.calibration.figures import ASSUMED_SERVICE, KIND, Calibration
from gatewise_sim.fleet.network.link import LinkProfile
from gatewise_sim.fleet.network.profiles import PROFILES
from gatewise_sim.fleet.run import simulate_fleet
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.fleet.worker import ServiceTime
from tests.support.routes import make_routes

MEASURED = Calibration(
    model="digits/7",
    edge_ms=(0.05, 0.0917),
    service=ServiceTime(12.345 / 1e6, 6.7 / 1e6, 301.002 / 1e6),
    broker_us=31.7,
    hop_ms=0.2034,
    proxy_ms=0.45,
    source="measured",
    about={"rows": 300, "machine": {"cpus": 2}},
)

TOML = """
kind = "gatewise-calibration"
model = "digits/7"
edge_ms = [0.05, 0.0917]
broker_us = 31.7
hop_ms = 0.2034
[service]
base_us = 100
each_us = 20
message_us = 0
spread = "exponential"
"""


@pytest.fixture
def settings() -> FleetSettings:
    return FleetSettings(
        devices=2,
        seconds=5.0,
        in_turn=[[0, 1, 2], [9]],
        service=ServiceTime(1.0, 1.0),
        link=PROFILES["4g"],
    )


def test_a_written_calibration_is_read_as_it_was(tmp_path):
    path = tmp_path / "mine.json"
    MEASURED.write(path)
    assert Calibration.from_file(path, n_stages=2) == replace(MEASURED, source="mine.json")
    again = tmp_path / "again.json"
    Calibration.from_file(path).write(again)
    assert again.read_bytes() == path.read_bytes()
    assert json.loads(json.dumps(MEASURED.as_dict())) == MEASURED.as_dict()
    assert "about" not in MEASURED.as_dict()
    path.write_text("{")
    with pytest.raises(InputError, match=r"calibration file .*mine\.json: .*Expecting"):
        Calibration.from_file(path)
    with pytest.raises(InputError, match="No such file"):
        MEASURED.write(tmp_path / "no" / "such.json")


def test_settings_get_the_figures(tmp_path, settings):
    found = MEASURED.apply(settings)
    assert found == replace(
        settings,
        edge_ms=MEASURED.edge_ms,
        service=MEASURED.service,
        broker_us=31.7,
        hop_ms=0.2034,
    )
    # An emulated link takes what its proxy takes, too.
    emulated = replace(settings.link, rtt_ms=45 + 2 * 0.45)
    assert MEASURED.apply(settings, live=True) == replace(found, link=emulated)
    no_link = replace(settings, link=LinkProfile("none"))
    assert MEASURED.apply(no_link, live=True).link == no_link.link
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    found = Calibration.from_file(path)
    assert found.service == ServiceTime(100e-6, 20e-6, 0.0, "exponential")
    assert (found.edge_ms, found.proxy_ms, found.source) == ((0.05, 0.0917), 0.0, "mine.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("broker_us = 31.7", "broker_us = -1", "broker_us is -1, must be at least 0"),
        ("hop_ms = 0.2034", "", "hop_ms is missing"),
        ("hop_ms = 0.2034", "hop_ms = 1\nhops = 2", "unknown key 'hops'; there are kind, model"),
        ("[0.05, 0.0917]", "[0.05]", "edge_ms has 1 figures, 2 stages run on the device"),
        ("[0.05, 0.0917]", "[]", r"edge_ms is \[\], not a list of numbers"),
        ("[0.05, 0.0917]", "[-0.05, 1]", r"edge_ms\[0\] is -0.05, must be at least 0"),
        ("each_us = 20", "each_us = -3", "service.each_us is -3, must be at least 0"),
        ("each_us = 20", "", "service.each_us is missing"),
        ("base_us = 100\neach_us = 20", "base_us = 0\neach_us = 0", "not all of them 0"),
        ('"exponential"', '"wide"', "service.spread is 'wide'; choose one of fixed, exponential"),
        ("gatewise-calibration", "gatewise-demo", "kind is 'gatewise-demo'"),
        ("[service]", "about = 5\n[service]", "about is 5, not a table"),
        ("[service]", "about = {day = 2020-01-01}\n[service]", "about: .*not JSON serializable"),
    ],
)
def test_a_file_with_a_fault_is_refused_in_one_line(tmp_path, old, new, says):
    assert TOML.count(old) == 1
    path = tmp_path / "mine.toml"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(InputError, match=says) as caught:
        Calibration.from_file(path, n_stages=2)
    assert str(caught.value).startswith(f"calibration file {path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"edge_ms": ()}, {"hop_ms": float("nan")}])
def test_times_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match=f"calibration: {next(iter(wrong))}"):
        replace(MEASURED, **wrong)


def test_what_is_assumed_is_the_same_each_time_and_fits_the_bundle(tmp_path):
    routes = make_routes()
    assumed = Calibration.assumed(routes)
    assert assumed == Calibration.assumed(make_routes())
    assert (assumed.model, assumed.source, assumed.edge_ms) == ("m/1", "assumed", (0.045,))
    assert assumed.service == ASSUMED_SERVICE
    many = replace(routes, plan=replace(routes.plan, n_stages=8))
    # As measured of eight stages: 245 us.
    assert Calibration.assumed(many).edge_ms[-1] == pytest.approx(0.245, rel=0.1)
    assumed.write(tmp_path / "assumed.json")
    document = json.loads((tmp_path / "assumed.json").read_text())
    assert (document["kind"], document["about"]) == (KIND, {})
    assert Calibration.from_file(tmp_path / "assumed.json").service == ASSUMED_SERVICE


def test_a_request_alone_takes_what_the_figures_sum_to():
    calibration = replace(MEASURED, edge_ms=(0.05,))
    settings = FleetSettings(
        devices=1, seconds=1.0, in_turn=[[0]], service=ServiceTime(1.0, 1.0), seed=3
    )
    answers = simulate_fleet(make_routes(), calibration.apply(settings)).answers
    way = 2 * 0.0317 + 2 * 0.2034 + 0.012345 + 0.0067 + 0.301002
    assert answers.latency_ms[0] == pytest.approx(0.05 + way)
