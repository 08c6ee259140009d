"""Tests of scenarios: parsed settings, errors, copies and command-line options."""

import re

import numpy as np
import pytest
from msgspec.structs import astuple

from gatewise.documents import read_toml
from gatewise.settings import make_settings
from gatewise_sim.fleet.link import PROFILES
from gatewise_sim.scenario import Scenario
from gatewise_sim.timings import Timings
from tests.support.processes import run_in_process
from tests.support.refused import assert_refused


def test_settings_are_parsed():
    scenario = Scenario(
        time="2h", day_start="11:00", workload="periodic:10s", link="wifi",
        outage=("cloud:12:00-12:10", "link:+5s-+6s"),
    )  # fmt: skip
    assert scenario.seconds == 7200
    assert scenario.arrival_process.mean_rate == 0.1
    assert scenario.link_profile is PROFILES["wifi"]
    spans = scenario.outages.spans_within_run()
    assert [*map(astuple, spans)] == [("cloud", 3600, 4200, 1), ("link", 5, 6, 1)]
    # By default a virtual run lasts an hour, and a live run, which takes real time, a minute.
    assert Scenario().seconds == 3600
    assert Scenario(engine="live").seconds == 60


def test_arrivals_depend_on_the_seed_and_the_mix():
    # from 0 s on, all instances have the first class
    scenario = Scenario(devices=4, time="100s", workload="poisson:1/s", mix="steps,0s=1/0")
    truth = np.array([0, 1, 0])
    arrivals = scenario.draw_fleet_arrivals(3, truth)
    assert set(arrivals.row) == {0, 2}
    assert np.array_equal(arrivals.time, scenario.draw_fleet_arrivals(3, truth).time)
    assert set(scenario.draw_fleet_arrivals(3).row) == {0, 1, 2}  # the mix needs labels
    assert scenario.draw_fleet_arrivals(3, n_devices=2).device.max() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "devices: must be a whole number of at least 1, not 0"),
        ({"devices": 2.5}, "devices: must be a whole number"),
        ({"deadline_ms": 0}, "deadline_ms: must be a number above 0"),
        ({"time": "5"}, "time: '5' is not a span of time"),
        ({"time": "0s"}, "time"),
        ({"workload": "often"}, "workload 'often': choose one of poisson"),
        ({"link": "pigeon"}, "unknown link 'pigeon'"),
        ({"outage": ("noon",)}, "outage 'noon'"),
        ({"policy": "sometimes"}, "policy: must be"),
        ({"audit": 2.0}, "audit: must be a number"),
        ({"audit": 0.0}, "audit is 0"),
        ({"max_offloads": "often"}, "max-offloads 'often': give a number per s"),
        ({"budget": 1.0, "max_loss": 0.1}, "give one of budget, max_loss and offload_rate"),
        ({"broker": "mqtt://x"}, "broker can only be used with the live engine"),
        ({"engine": "live", "tls": True}, "tls can only be used with the virtual engine"),
        ({"engine": "real"}, "engine: must be"),
        ({"day_start": "25:00"}, "day_start"),
    ],
)
def test_error_of_an_invalid_scenario_names_the_setting(changes, message):
    assert_refused(Scenario, **changes, message=message)


def test_changes_make_a_new_scenario():
    scenario = Scenario(budget=2.0)
    assert scenario.changed(max_loss=0.1).goal == {"max_loss": 0.1}  # replaces the budget
    assert scenario.changed(devices=3).goal == {"budget": 2.0}
    assert_refused(scenario.changed, device=3, message="unknown setting 'device'; the settings are")


def test_options_and_settings_file_repeat_a_scenario(tmp_path):
    scenario = Scenario(
        devices=7, outage=("cloud:+1s-+2s", "link:+3s-+4s"), engine="live", queue=5, tls=False,
        broker="mqtt://user:secret@host", timings=Timings(edge_ms=(1.0,), run_us=2, instance_us=3),
    )  # fmt: skip
    options = scenario.command_options()
    assert options == [
        "--devices", "7", "--outage", "cloud:+1s-+2s", "--outage", "link:+3s-+4s", "--engine",
        "live", "--broker", "mqtt://host:1883", "--seed", "0",
    ]  # fmt: skip
    assert scenario.file_only_settings() == {"queue": 5}
    assert "secret" not in str(scenario.as_dict())
    assert scenario.as_dict()["queue"] == 5
    assert scenario.as_dict()["time"] == "60s"  # the default of the engine
    # The command reads the other settings from a file; its options replace those of the file.
    path = tmp_path / "settings.toml"
    path.write_text(
        "devices = 9\nqueue = 5\n[timings]\nedge_ms = [1.0]\nrun_us = 2\ninstance_us = 3\n"
    )
    entries = read_toml(path, dict)
    read_scenario = make_settings(Scenario, {"devices": 7}, entries, str(path))
    assert (read_scenario.devices, read_scenario.queue, read_scenario.timings) == (
        7,
        5,
        scenario.timings,
    )


def test_help_lists_every_link_and_only_frequent_options(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    help_text = run_in_process("simulate", "--help").stdout
    for link_name in PROFILES:
        assert link_name in help_text
    options_text = help_text.rpartition("Options:")[2]
    options = set(re.findall(r"^  (--[a-z-]+)", options_text, re.MULTILINE)) - {"--help"}
    assert len(options) <= 26  # today's number; rare settings are read from a file
    assert {"--devices", "--settings", "--sweep"} <= options
    assert "queue" in help_text  # a rare setting
