"""Profiles, one's own from a file, and the link of virtual time beside the proxy's arithmetic."""

import math

import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.energy import HEADER, RADIOS, SEGMENT, Radio, ip_bytes, packets
from gatewise_sim.fleet.network.link import (
    LinkProfile,
)
from gatewise_sim.fleet.network.profiles import PROFILES, profile
from tests.support.refused import refused_file


def test_every_profile_has_a_radio_and_round_trips():
    assert {name for name, link in PROFILES.items() if link.radio.name == "none"} == {"none"}
    assert not PROFILES["none"].delays
    assert all(link.delays for name, link in PROFILES.items() if name != "none")
    assert not LinkProfile("free", radio=RADIOS["lte"]).delays


def test_an_own_profile_from_a_file(tmp_path):
    file = tmp_path / "link.toml"
    file.write_text(
        'like = "4g"\nname = "ours"\nrtt_ms = 60\nup_kbps = inf\n[radio]\nlike = "3g"\ntail_s = 5\n'
    )
    link = profile(str(file))
    wanted = RADIOS["3g"]
    assert link.radio == Radio(
        "ours", wanted.wake_w, wanted.wake_s, wanted.active_w, wanted.up_uj_per_byte,
        wanted.down_uj_per_byte, tail_w=wanted.tail_w, tail_s=5.0,
    )  # fmt: skip
    assert link == LinkProfile("ours", 60, 15, 100_000, math.inf, 0.002, link.radio)
    file.write_text("up_kbps = 10\n")
    assert profile(str(file)) == LinkProfile("link", up_kbps=10)
    with pytest.raises(InputError, match=r"link file nowhere\.toml: No such file"):
        profile("nowhere.toml")
    with pytest.raises(InputError, match=r"no link 'wlan'; choose one of none, wifi"):
        profile("wlan")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rtt = 5", "unknown key 'rtt'; there are like, name, rtt_ms"),
        ("rtt_ms = inf", "rtt_ms is inf, must be finite"),
        ("loss = 1.0", "loss is 1.0, must be below 1"),
        ("up_kbps = 0", "up_kbps is 0.0, must be above 0"),
        ("rtt_ms = 5\njitter_ms = 6", "jitter_ms is 6.0, must not be above rtt_ms"),
        ('like = "5g"', "like is '5g'; choose one of none, wifi"),
        ("[radio]\ntail_s = -3", "radio.tail_s is -3, must be at least 0"),
        ('[radio]\nlike = "x"', "radio.like is 'x'; choose one of none, wifi, lte"),
        ("rtt_ms = ", "link.toml: Invalid value"),
    ],
)
def test_a_bad_file_is_refused_by_the_name_of_its_field(tmp_path, text, complaint):
    refused_file(lambda path: profile(str(path)), tmp_path / "link.toml", text, complaint)


@pytest.mark.parametrize("size", [0, 1, SEGMENT, SEGMENT + 1, 10 * SEGMENT])
def test_headers_count_on_every_segment(size):
    assert packets(size) == math.ceil(size / SEGMENT)
    assert ip_bytes(size) == size + HEADER * packets(size)
