"""Enrolment of devices with one-time tokens."""

from __future__ import annotations

import datetime
import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_cloud.broker.authority import read_certificate
from gatewise_cloud.broker.broker_init import find_plugin, init_broker, read_roster
from gatewise_cloud.broker.enrolment import EnrolmentServer, make_tokens
from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.service.enrolment import enrol
from tests.support.mosquitto import SecureBroker, make_broker_folder
from tests.support.waiting import wait_until


def utc_now():
    return datetime.datetime.now(datetime.UTC)


@pytest.fixture
def broker_folder(tmp_path):
    return make_broker_folder(tmp_path / "broker")


@contextmanager
def serve_enrolments(broker_folder, grant_rights=lambda _, names: None, clock=utc_now):
    """Serve enrolments on a free port and give the URL.

    `grant_rights` is called with the folder and the names of devices that are enrolled together.
    """
    with EnrolmentServer(
        broker_folder.folder, host="127.0.0.1", port=0, grant_rights=grant_rights, clock=clock
    ) as server:
        yield f"https://127.0.0.1:{server.port}"


def make_pi_5_token(broker_folder):
    """Make a token for pi-5, a device that the folder does not have yet."""
    return make_tokens(broker_folder.folder, ["pi-5"])["pi-5"]


class GrantRecorder:
    """Function that grants no rights, and records the groups of names that it is called with."""

    def __init__(self):
        self.groups = []

    def __call__(self, _, names):
        self.groups.append(names)


@pytest.mark.slow
def test_a_token_is_valid_once_and_the_broker_never_gets_the_key(broker_folder, tmp_path):
    token = make_pi_5_token(broker_folder)
    grant_recorder = GrantRecorder()
    with serve_enrolments(broker_folder, grant_recorder) as url:
        enrolment = enrol(url, token, tmp_path / "tls")
        assert enrolment == {
            "device": "pi-5",
            "broker": f"mqtts://127.0.0.1:{broker_folder.roster.port}",
        }
        with pytest.raises(LinkError, match="was used before"):
            enrol(url, token, tmp_path / "again")
        assert not (tmp_path / "again").exists()
        # The device refuses to replace a key, before it sends the token.
        with pytest.raises(InputError, match="already exists"):
            enrol(url, token, tmp_path / "tls")
    assert grant_recorder.groups == [["pi-5"]]
    assert stat.S_IMODE((tmp_path / "tls/device.key").stat().st_mode) == 0o600  # only its owner
    certificate = read_certificate(tmp_path / "tls/device.crt")
    certificate.verify_directly_issued_by(read_certificate(broker_folder.folder / "ca.crt"))
    assert not list(broker_folder.folder.rglob("pi-5.key"))
    # A later call of `broker init` makes no key for the enrolled device.
    extended_folder = init_broker(broker_folder.folder, devices=("pi-6",))
    assert [path.name for path in extended_folder.issued_certificates] == ["pi-6.crt"]
    assert "pi-5" in extended_folder.roster.devices


@pytest.mark.slow
def test_invalid_tokens_and_urls_are_refused(broker_folder, tmp_path):
    token = make_pi_5_token(broker_folder)
    name, secret, digest = token.split(".")  # the digest is that of the authority's certificate
    grant_recorder = GrantRecorder()
    with serve_enrolments(broker_folder, grant_recorder) as url:
        for invalid_token, message in (
            (f"{name}.{'0' * 32}.{digest}", "not valid"),
            (f"boss.{secret}.{digest}", "not valid"),  # the token of another client
            (f"{name}.{secret}.{'0' * 64}", "not the server that made this token"),
        ):
            with pytest.raises(LinkError, match=message):
                enrol(url, invalid_token, tmp_path / "tls")
        for wrong_url, wrong_token in (
            (url.replace("https", "http"), token),
            ("https://[", token),
            ("https://localhost:port", token),
            (url, f"{'n' * 65}.{secret}.{digest}"),  # a certificate's name has 64 characters
            (url, f"{name}.{secret}.{'ä' * 64}"),
        ):
            with pytest.raises(InputError, match="URL"):
                enrol(wrong_url, wrong_token, tmp_path / "tls")
    assert grant_recorder.groups == []
    with pytest.raises(InputError, match="has a certificate"):
        make_tokens(broker_folder.folder, ["pi-1"])


def test_a_token_that_cannot_be_encoded_is_refused_alone(broker_folder):
    make_pi_5_token(broker_folder)
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    server = EnrolmentServer(
        broker_folder.folder, host="127.0.0.1", port=0, grant_rights=GrantRecorder(), clock=utc_now
    )
    with server, pytest.raises(InputError, match="the token is not valid"):
        server.enrol("pi-5.\ud800.digest", csr)


@pytest.mark.slow
def test_the_url_of_a_broker_with_an_ipv6_address_has_brackets(tmp_path):
    broker_folder = init_broker(tmp_path / "broker", hosts=("fd00::5", "127.0.0.1"))
    token = make_pi_5_token(broker_folder)
    with serve_enrolments(broker_folder) as url:
        assert enrol(url, token, tmp_path / "tls")["broker"] == "mqtts://[fd00::5]:8883"


@pytest.mark.slow
def test_a_stranger_that_adds_its_certificate_to_the_authority_is_not_trusted(
    broker_folder, tmp_path
):
    token = make_pi_5_token(broker_folder)
    stranger_folder = make_broker_folder(tmp_path / "stranger")
    stranger_certificate = stranger_folder.folder / "ca.crt"
    authority_certificate = (broker_folder.folder / "ca.crt").read_bytes()
    stranger_certificate.write_bytes(authority_certificate + stranger_certificate.read_bytes())
    with (
        serve_enrolments(stranger_folder) as url,
        pytest.raises(LinkError, match="certificate verify failed"),
    ):
        enrol(url, token, tmp_path / "tls")


@pytest.mark.slow
def test_a_malformed_response_leaves_no_key(broker_folder, tmp_path, monkeypatch):
    contents = [
        *(b"<html>", b"[]", b'{"certificate": "-----BEGIN CERTIFICATE-----"}'),
        b'{"certificate": "none", "broker": "mqtts://localhost"}',
    ]

    def respond(handler):
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler._respond(200, contents.pop())

    monkeypatch.setattr("gatewise_cloud.broker.enrolment._EnrolmentHandler.do_POST", respond)
    token = make_pi_5_token(broker_folder)
    with serve_enrolments(broker_folder) as url:
        while contents:
            with pytest.raises(LinkError, match="malformed response"):
                enrol(url, token, tmp_path / "tls")
            assert not (tmp_path / "tls").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_leaves_the_token_valid(broker_folder, tmp_path):
    token = make_pi_5_token(broker_folder)
    (tmp_path / "file").touch()
    with serve_enrolments(broker_folder) as url:
        with pytest.raises(InputError, match="cannot be written: Not a directory"):
            enrol(url, token, tmp_path / "file" / "tls")
        assert enrol(url, token, tmp_path / "tls")["device"] == "pi-5"


@pytest.mark.slow
def test_a_token_expires_after_a_day(broker_folder, tmp_path):
    token = make_pi_5_token(broker_folder)
    tomorrow = utc_now() + datetime.timedelta(days=1, minutes=1)
    with (
        serve_enrolments(broker_folder, clock=lambda: tomorrow) as url,
        pytest.raises(LinkError, match="has expired"),
    ):
        enrol(url, token, tmp_path / "tls")


@pytest.mark.slow
def test_simultaneous_devices_are_enrolled_together(broker_folder, tmp_path):
    token_by_name = make_tokens(broker_folder.folder, [f"new-{i}" for i in range(8)])
    names = list(token_by_name)  # sorted
    grant_recorder = GrantRecorder()
    with serve_enrolments(broker_folder, grant_recorder) as url, ThreadPoolExecutor(8) as pool:
        enrolments = list(
            pool.map(lambda name: enrol(url, token_by_name[name], tmp_path / name), names)
        )
    assert [enrolment["device"] for enrolment in enrolments] == names
    assert sorted(name for group in grant_recorder.groups for name in group) == names
    # The server collects requests for 0.2 s, so eight threads do not make eight groups.
    assert len(grant_recorder.groups) < len(names)
    assert set(names) <= set(read_roster(broker_folder.folder).devices)


@pytest.mark.slow
def test_a_token_stays_valid_if_rights_cannot_be_granted(broker_folder, tmp_path):
    token = make_pi_5_token(broker_folder)
    # an error of an unreachable broker, and an error of a kind that nobody expects
    failures = [LinkError("mqtts://localhost", "it cannot be reached"), RuntimeError("unexpected")]

    def fail_twice(_, names):
        if failures:
            raise failures.pop()

    with serve_enrolments(broker_folder, fail_twice) as url:
        for _ in range(2):
            with pytest.raises(LinkError, match="try again later"):
                enrol(url, token, tmp_path / "tls")
        assert enrol(url, token, tmp_path / "tls")["device"] == "pi-5"


@pytest.mark.slow
def test_a_token_made_during_an_enrolment_stays_valid(broker_folder, tmp_path):
    token = make_pi_5_token(broker_folder)
    tokens_made_meanwhile = {}

    def make_token_once(_, names):
        if not tokens_made_meanwhile:
            tokens_made_meanwhile.update(make_tokens(broker_folder.folder, ["pi-6"]))

    with serve_enrolments(broker_folder, make_token_once) as url:
        enrol(url, token, tmp_path / "pi-5")
        enrolment = enrol(url, tokens_made_meanwhile["pi-6"], tmp_path / "pi-6")
    assert enrolment["device"] == "pi-6"


@pytest.mark.slow
def test_a_request_at_the_end_of_the_server_is_answered(broker_folder, tmp_path, monkeypatch):
    token = make_pi_5_token(broker_folder)
    is_collecting = threading.Event()
    may_continue = threading.Event()

    def collect(_):
        is_collecting.set()
        may_continue.wait(60)

    monkeypatch.setattr("gatewise_cloud.broker.enrolment.time", SimpleNamespace(sleep=collect))
    with ThreadPoolExecutor(1) as pool:
        with serve_enrolments(broker_folder) as url:
            enrolment = pool.submit(enrol, url, token, tmp_path / "pi-5")
            assert is_collecting.wait(60)
            # the server ends while it collects requests
            threading.Timer(0.7, may_continue.set).start()
        assert enrolment.result(60)["device"] == "pi-5"


@pytest.mark.slow
@pytest.mark.skipif(find_plugin() is None, reason="needs mosquitto's dynamic security plugin")
def test_an_enrolled_device_connects_to_the_running_broker(
    broker_folder, tmp_path, capsys, command
):
    folder = str(broker_folder.folder)
    with SecureBroker(broker_folder) as broker:
        server_command = command(
            "broker", "enrol", "--dir", folder, "--port", "0", "--host", "127.0.0.1", "--json"
        )
        url = f"https://127.0.0.1:{json.loads(server_command.read_line())['port']}"
        assert main(["broker", "token", "pi-5", "--dir", folder]) == 0
        token = capsys.readouterr().out.strip()
        tls_folder = tmp_path / "tls"
        options = ["--token", token, "--out", str(tls_folder), "--json"]
        assert main(["edge", "enrol", url, *options]) == 0
        assert json.loads(capsys.readouterr().out)["device"] == "pi-5"
        link = MqttLink(
            broker.url,
            device="pi-5",
            ca_file=tls_folder / "ca.crt",
            cert_file=tls_folder / "device.crt",
            key_file=tls_folder / "device.key",
        )
        link.connect(60)  # seconds, on a loaded machine
        wait_until(lambda: link.is_ready)
        link.close()
