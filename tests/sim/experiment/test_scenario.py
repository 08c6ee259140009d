import pytest

from gatewise.errors import InputError
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.experiment.simulation import Job
from gatewise_sim.fleet.network.outages import Outages
from gatewise_sim.fleet.workload.kinds import Diurnal
from tests.support.refused import refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "devices is 0; give a whole number, at least 1"),
        ({"seed": -1}, "seed is -1; give a whole number, at least 0"),
        ({"seconds": 0.0}, "seconds is 0.0, must be above 0"),
        ({"deadline_ms": float("nan")}, "deadline_ms is nan, not a number"),
        ({"link": "5g"}, "no link '5g'; choose one of"),
        ({"workload": "poison:1/min"}, "workload 'poison:1/min': choose one of"),
        ({"outages": "cloud"}, "outage 'cloud': write it as"),
        ({"day_start": "25:00"}, "day_start: '25:00' is not a time of day"),
        ({"engine": "real"}, "engine 'real'; choose one of virtual, live"),
        ({"budget": 4.0, "max_loss": 0.1}, "give one of budget, max_loss and offload_rate"),
        ({"offload_rate": -0.1}, "offload_rate is -0.1, must be at least 0"),
        ({"broker": "mqtt://x"}, "broker goes with the live engine"),
    ],
)
def test_what_cannot_be_is_said_at_once_and_by_name(changes, message):
    refused(Scenario, **changes, says=message)


def test_the_day_starts_when_it_is_said_to():
    scenario = Scenario(
        day_start="11:30", workload="diurnal:1/min:peak=12:00", outages="cloud:12:00-12:10"
    )
    settings = scenario.settings()
    assert isinstance(settings.workload, Diurnal)
    assert settings.workload.day_begins == 11.5 * 3600
    assert isinstance(settings.outages, Outages)
    assert settings.outages.down("cloud", 1801.0) == 2400.0
    assert settings.outages.down("cloud", 1799.0) is None


def test_another_operating_point_takes_the_place_of_the_one_before():
    scenario = Scenario(budget=4.0)
    assert scenario.changed(max_loss=0.01).goal == {"max_loss": 0.01}
    assert scenario.changed(devices=7) == Scenario(budget=4.0, devices=7)
    with pytest.raises(
        InputError, match="no setting 'colour'; there are audit, backend, baselines"
    ):
        scenario.changed(colour="red")


EVERYTHING = Scenario(
    devices=7,
    workers=3,
    seconds=90.5,
    workload="bursty:2/min:ratio=9:burst=10s:every=100s",
    mix="steps,0s=1/2,1min=2/1",
    day_start="08:15",
    link="wifi",
    outages="cloud:08:16-08:17,workers:2:+1s-+2s",
    deadline_ms=250.0,
    breaker=False,
    outstanding=4,
    queue=8,
    max_batch=2,
    wait_ms=1.5,
    parallel=2,
    offload_rate=0.25,
    engine="live",
    broker="mqtt://broker.example:1884",
    processes=2,
    calibration="my times.json",
    prices="prices.toml",
    device_energy="pi's.toml",
    baselines=False,
    seed=5,
)


@pytest.mark.parametrize(
    "job",
    [
        Job("bundle", "rows.csv"),
        Job("my bundle.gwb", "a b.csv", "the label", EVERYTHING),
        Job(
            "b", "digits", scenario=Scenario(budget=1e-5, seconds=86_400.0, workload="periodic:3s")
        ),
    ],
    ids=["defaults", "everything", "some"],
)
def test_the_command_asks_for_the_same_again(job, monkeypatch):
    import shlex

    from gatewise import cli
    from gatewise_sim.experiment import simulate_command

    asked = []
    monkeypatch.setattr(
        simulate_command, "_simulate", lambda job, out, **how: asked.append(job) or False
    )
    assert cli.main(shlex.split(job.command())[1:]) == 0
    assert asked == [job]
    scenario = Scenario(engine="live", broker="mqtt://me:secret@broker.example:1884")
    assert "secret" not in Job("b", "d", scenario=scenario).command()
    assert "secret" not in str(scenario.as_dict())
