"""Against a real HTTPS server on the loopback, with a certificate made for the test."""

from __future__ import annotations

import hashlib
import os

import pytest

from gatewise.errors import InputError
from gatewise_edge.update.announcement import Announcement
from gatewise_edge.update.errors import UpdateError
from gatewise_edge.update.fetch import Fetcher, check_host

CONTENT = os.urandom(300_000)


def wanted(url, content=CONTENT, **changes):
    digest = hashlib.sha256(content).hexdigest()
    fields = {"serial": 1, "sha256": digest, "size": len(content), "url": url}
    return Announcement("small", "8", **(fields | changes))


@pytest.fixture
def fetcher(server):
    return Fetcher([server.host], ca_file=server.ca_file, timeout=20.0)


def refused(fetcher, announcement, folder):
    with pytest.raises(UpdateError) as caught:
        fetcher.fetch(announcement, folder)
    return caught.value


def test_a_file_is_fetched(server, fetcher, tmp_path):
    url = server.put("/small.gwb", CONTENT)
    assert fetcher.fetch(wanted(url), tmp_path).read_bytes() == CONTENT
    assert fetcher.received == len(CONTENT)
    # what is whole is not fetched twice
    fetcher.fetch(wanted(url), tmp_path)
    assert server.asked == [("/small.gwb", None)]


def test_a_cut_connection_is_taken_up_where_it_ended(server, fetcher, tmp_path):
    url = server.put("/small.gwb", CONTENT, cuts=[100_000, 50_000])
    for _ in range(2):
        error = refused(fetcher, wanted(url), tmp_path)
        assert (error.reason, error.again) == ("fetch", True)
    assert fetcher.fetch(wanted(url), tmp_path).read_bytes() == CONTENT
    ranges = [asked for _, asked in server.asked]
    assert ranges[0] is None
    starts = [int(r.removeprefix("bytes=").removesuffix("-")) for r in ranges[1:]]
    assert 0 < starts[0] <= 100_000 < starts[1] <= 150_000
    assert fetcher.received == len(CONTENT)


@pytest.mark.parametrize("how", [{"ranges": False}, {"etag": None}, {"etag": 'W/"weak"'}])
def test_a_server_without_ranges_is_asked_anew(server, fetcher, tmp_path, how):
    url = server.put("/small.gwb", CONTENT, cuts=[100_000], **how)
    refused(fetcher, wanted(url), tmp_path)
    assert fetcher.fetch(wanted(url), tmp_path).read_bytes() == CONTENT
    assert fetcher.received == len(CONTENT) + 100_000


def test_a_file_that_changed_meanwhile_is_begun_anew(server, fetcher, tmp_path):
    url = server.put("/small.gwb", os.urandom(len(CONTENT)), cuts=[100_000], etag='"old"')
    refused(fetcher, wanted(url), tmp_path)
    server.put("/small.gwb", CONTENT, etag='"new"')
    assert fetcher.fetch(wanted(url), tmp_path).read_bytes() == CONTENT


def test_a_wrong_file_is_refused_and_not_kept(server, fetcher, tmp_path):
    url = server.put("/small.gwb", os.urandom(len(CONTENT)))
    error = refused(fetcher, wanted(url), tmp_path)
    assert error.reason == "hash"
    assert list(tmp_path.glob("*.part")) == list(tmp_path.glob("*.etag")) == []


@pytest.mark.parametrize(
    "how", [{"extra": b"more"}, {"extra": b"m" * 10_000_000, "length": -1}, {"length": 12}]
)
def test_a_body_of_another_size_is_refused(server, fetcher, tmp_path, how):
    url = server.put("/small.gwb", CONTENT, **how)
    error = refused(fetcher, wanted(url), tmp_path)
    assert error.reason == "size"
    assert fetcher.received <= len(CONTENT)
    assert sum(p.stat().st_size for p in tmp_path.glob("*.part")) <= len(CONTENT)


def test_a_file_that_is_too_large_is_not_asked_for(server, tmp_path):
    fetcher = Fetcher([server.host], ca_file=server.ca_file, most_bytes=1000)
    error = refused(fetcher, wanted(server.put("/small.gwb", CONTENT)), tmp_path)
    assert (error.reason, error.again) == ("size", False)
    huge = wanted(server.url("/small.gwb"), size=1 << 40)
    big = Fetcher([server.host], ca_file=server.ca_file, most_bytes=1 << 50)
    assert refused(big, huge, tmp_path).reason in ("space", "size")
    assert server.asked == []


def test_other_hosts_are_not_asked(server, fetcher, make_server, tmp_path):
    other = make_server()
    error = refused(fetcher, wanted(other.put("/small.gwb", CONTENT)), tmp_path)
    assert (error.reason, error.again) == ("host", False)
    assert "no such host" in str(error)
    for url in (
        f"https://user@{server.host}/x",
        f"https://{server.host}@evil.org/x",
        "https:///x",
        "https://127.0.0.1/x",
    ):
        assert refused(fetcher, wanted(url), tmp_path).reason == "host"
    assert server.asked == other.asked == []


def test_redirects_lead_to_known_hosts_alone(server, fetcher, make_server, tmp_path):
    other = make_server()
    other.put("/small.gwb", CONTENT)
    away = server.put("/away", b"", redirect=other.url("/small.gwb"))
    assert refused(fetcher, wanted(away), tmp_path).reason == "host"
    down = server.put("/down", b"", redirect=f"http://{server.host}/small.gwb")
    assert refused(fetcher, wanted(down), tmp_path).reason == "host"
    files = server.put("/files", b"", redirect="file:///etc/hostname")
    assert refused(fetcher, wanted(files), tmp_path).reason == "host"
    round_ = server.put("/round", b"", redirect="/round")
    assert "too many redirects" in str(refused(fetcher, wanted(round_), tmp_path))
    assert other.asked == []
    server.put("/small.gwb", CONTENT)
    near = server.put("/near", b"", redirect="/small.gwb")
    assert fetcher.fetch(wanted(near), tmp_path).read_bytes() == CONTENT


def test_certificates_are_checked(server, make_server, tmp_path):
    url = server.put("/small.gwb", CONTENT)
    strict = Fetcher([server.host])
    error = refused(strict, wanted(url), tmp_path)
    assert (error.reason, error.again) == ("fetch", True)
    assert "certificate" in str(error)
    elsewhere = make_server("127.0.0.2")  # its certificate is for another address
    elsewhere.put("/small.gwb", CONTENT)
    wrong = Fetcher([elsewhere.host], ca_file=elsewhere.ca_file)
    assert "certificate" in str(refused(wrong, wanted(elsewhere.url("/small.gwb")), tmp_path))
    assert server.asked == elsewhere.asked == []


def test_a_missing_file_and_a_dead_server_may_be_tried_again(server, fetcher, tmp_path):
    error = refused(fetcher, wanted(server.url("/none")), tmp_path)
    assert (error.reason, error.again) == ("fetch", True)
    assert "404" in str(error)
    dead = Fetcher(["127.0.0.1:1"], timeout=5.0)
    assert refused(dead, wanted("https://127.0.0.1:1/x"), tmp_path).again


def test_file_urls_only_where_they_are_allowed(fetcher, tmp_path):
    source, folder = tmp_path / "a b.gwb", tmp_path / "partial"
    folder.mkdir()
    source.write_bytes(CONTENT)
    assert refused(fetcher, wanted(source.as_uri()), folder).reason == "host"
    offline = Fetcher([], allow_files=True)
    assert offline.fetch(wanted(source.as_uri()), folder).read_bytes() == CONTENT
    other = wanted((tmp_path / "none.gwb").as_uri(), b"something else")
    assert refused(offline, other, folder).reason == "fetch"


def test_a_fetch_can_be_stopped(server, fetcher, tmp_path):
    url = server.put("/small.gwb", CONTENT)
    with pytest.raises(UpdateError) as caught:
        fetcher.fetch(wanted(url), tmp_path, stop=lambda: True)
    assert caught.value.reason == "stopped"
    assert fetcher.fetch(wanted(url), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("host", ["", "https://x", "x/y", "a@b", "x:99999", "x:y", "x?y"])
def test_what_is_no_host(host):
    with pytest.raises(InputError, match="host"):
        check_host(host)


def test_hosts_are_completed():
    assert check_host("Example.org") == check_host("example.org:443") == "example.org:443"
    assert check_host("[::1]:8443") == "::1:8443"
    with pytest.raises(InputError, match="update certificates"):
        Fetcher([], ca_file="/nowhere.pem")
