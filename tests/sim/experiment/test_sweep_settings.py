import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.experiment.sweep.settings import (
    SweptSetting,
    merged,
)
from gatewise_sim.report.sweep.setting_text import value_text
from tests.support.refused import refused

CLOCK = st.builds("{:02d}:{:02d}".format, st.integers(0, 11), st.integers(0, 59))
OUTAGE = st.builds(
    "{}:{}-{}".format, st.sampled_from(["cloud", "link", "broker"]), CLOCK,
    st.builds("{:02d}:{:02d}".format, st.integers(12, 23), st.integers(0, 59)),
)  # fmt: skip
TEXTS = {
    "devices": st.integers(1, 10**9).map(str),
    "workers": st.integers(1, 10**6).map(str),
    "seed": st.integers(0, 10**12).map(str),
    "seconds": st.integers(1, 10**6).map("{}s".format),
    "deadline_ms": st.floats(0.001, 1e6).map("{:.12g}".format),
    "max_loss": st.floats(0, 1).map(str),
    "budget": st.one_of(st.just("none"), st.floats(0, 1e6).map("{:.12g}".format)),
    "link": st.sampled_from(["none", "wifi", "4g", "nb-iot"]),
    "workload": st.sampled_from(
        ["poisson:1/min", "periodic:10s:jitter=1s", "diurnal:2/min:peak=14:00:ratio=5"]
    ),
    "outages": st.one_of(st.just("none"), st.lists(OUTAGE, min_size=1, max_size=3).map(",".join)),
    "pace": st.sampled_from(["none", "offload_rate=0.1", "offload_rate=0.25"]),
    "audit": st.one_of(st.just("none"), st.floats(1e-3, 1).map("{:.12g}".format)),
    "baselines": st.sampled_from(["yes", "no"]),
}


@st.composite
def sweeps(draw):
    name = draw(st.sampled_from(sorted(TEXTS)))
    texts = draw(st.lists(TEXTS[name], min_size=1, max_size=5, unique=True))
    between = "|" if any("," in t for t in texts) or draw(st.booleans()) else ","
    if name == "outages":
        between = "|"
    return name, between.join(texts), len(texts)


def written(sweep: SweptSetting) -> str:
    texts = [value_text(value, sweep.name) for value in sweep.values]
    bar = sweep.name in ("outages", "mix") or any("," in text for text in texts)
    return f"{sweep.name}={('|' if bar else ',').join(texts)}"


@given(sweeps())
def test_what_is_written_is_read_and_written_the_same(given):
    name, text, count = given
    sweep = SweptSetting.parse(f"{name}={text}")
    assert (sweep.name, len(sweep.values)) == (name, count)
    assert SweptSetting.parse(written(sweep)) == sweep
    for value in sweep.values:
        assert getattr(Scenario().changed(**{name: value}), name) == value


@given(
    st.text() | st.text("0123456789.,:/s"),
    st.sampled_from(["", "devices=", "outages=", "max_loss=", "workload="]),
)
def test_whatever_else_is_written_is_refused_by_name_or_read_the_same(text, before):
    try:
        sweep = SweptSetting.parse(before + text)
    except InputError as error:
        said = str(error)
    else:
        said = f"sweep {sweep.name}"
        assert SweptSetting.parse(written(sweep)) == sweep
    assert said.startswith("sweep")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("devices", "sweep 'devices': write it as devices=10,100,1000"),
        ("devces=1", "sweep: no setting 'devces', did you mean 'devices'?"),
        ("frobs=1", "sweep: no setting 'frobs'; there are devices, workers"),
        ("engine=live", "sweep: no setting 'engine'"),
        ("devices=", "sweep 'devices=': a value is empty"),
        ("budget=,4", "sweep 'budget=,4': a value is empty; write none to leave it out"),
        ("devices=1,2,1", "sweep devices: 1 is given twice"),
        ("max_loss=0.01,1e-2", "sweep max_loss: 0.01 is given twice"),
        ("devices=ten", "sweep devices: 'ten' is not a whole number"),
        ("devices=1_000", "sweep devices: '1_000' is not a whole number"),
        ("devices=0", "sweep devices: devices is 0; give a whole number, at least 1"),
        ("devices=\u0661", "sweep devices: '\u0661' is not a whole number"),
        ("max_loss=nan", "sweep max_loss: 'nan' is not a number"),
        ("max_loss=-1", "sweep max_loss: max_loss is -1.0, must be at least 0"),
        ("audit=often", "sweep audit: 'often' is not a number"),
        ("audit=2", "sweep audit: audit: the share is 2.0; give one above 0, up to 1"),
        ("deadline_ms=0", "sweep deadline_ms: deadline_ms is 0"),
        ("seconds=60", "sweep seconds: '60' is not a span of time"),
        ("link=4g|5g", "sweep link: no link '5g'; choose one of none, wifi"),
        ("outages=cloud:12:00", "sweep outages: outage 'cloud:12:00'"),
        ("baselines=maybe", "sweep baselines: 'maybe'; say yes or no"),
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_named(text, said):
    assert refused(SweptSetting.parse, text, says=said).startswith(said)


def test_a_comma_among_outages_is_explained():
    with pytest.raises(InputError, match=r"several values are joined by \|$"):
        SweptSetting.parse("outages=none,cloud:12:00-12:10")


def test_a_name_that_is_given_again_gets_more_values():
    found = merged(["outages=cloud:12:00-12:10,link:+1s-+2s", "workers=1,2", "outages=none"])
    assert found == (
        SweptSetting("outages", ("cloud:12:00-12:10,link:+1s-+2s", "")),
        SweptSetting("workers", (1, 2)),
    )
    assert merged(["time=1h", "max-loss=0"])[0] == SweptSetting("seconds", (3600.0,))
    with pytest.raises(InputError, match="devices: 1 is given twice"):
        merged(["devices=1,2", "devices=1"])


def test_sweeps_that_cannot_be_together_are_refused():
    with pytest.raises(InputError, match="at least one setting"):
        merged([])
    with pytest.raises(InputError, match="budget and max_loss each choose"):
        merged(["budget=1,2", "max_loss=0.1"])
    with pytest.raises(InputError, match="1,010 points"):
        merged([f"devices={','.join(map(str, range(1, 102)))}", "seed=1,2,3,4,5,6,7,8,9,10"])
