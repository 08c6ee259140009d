"""Tests of the proxy that delays the messages of devices."""

from gatewise_sim.live.proxy import DelayProxy
from gatewise_sim.scenario import Scenario


def test_url_has_the_user_and_password_of_the_broker():
    link_profile = Scenario(link="3g").link_profile
    for userinfo in ("", "pi:s%40cret@"):
        with DelayProxy(f"mqtt://{userinfo}localhost:1883", link_profile) as proxy:
            assert proxy.url.startswith(f"mqtt://{userinfo}127.0.0.1:")
