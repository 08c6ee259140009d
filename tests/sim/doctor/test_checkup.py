"""Tests of the doctor with real brokers, certificates, access lists, workers and bundles."""

from __future__ import annotations

import datetime
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import cbor2
import numpy as np
import pytest

from gatewise_cloud.broker.broker import EmbeddedBroker, MosquittoBroker, find_mosquitto
from gatewise_cloud.broker.broker_init import init_broker
from gatewise_cloud.worker.worker import Worker
from gatewise_edge.device.device import Device
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.service.settings import EdgeSettings
from gatewise_sim.doctor.checkup import examine
from gatewise_sim.doctor.probe import BrokerProbe
from gatewise_sim.doctor.round_trip import _make_request, _rate_round_trip
from gatewise_sim.doctor.settings import DeviceSettings
from tests.support import small_bundle
from tests.support.bundle_files import replace_file
from tests.support.image_models import pack_image_pair
from tests.support.mosquitto import Mosquitto, SecureBroker, make_broker_folder, mosquitto_user
from tests.support.mqtt_clients import SimulatedWorker
from tests.support.ports import free_port
from tests.support.product_code import PACKAGES
from tests.support.waiting import wait_until

bundle = small_bundle.bundle

# paho leaves the socket of a failed handshake to the garbage collector.
pytestmark = [
    pytest.mark.slow,  # processes start
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


#: Doctor's wait (s) for a response of a healthy deployment, on a machine that runs many tests.
LONG_TIMEOUT = 60
#: Doctor's wait (s) where a response is missing, or is local and quick.
SHORT_TIMEOUT = 1.5


def list_findings(broker, **settings):
    """List the findings for a device with these settings."""
    return list(examine(DeviceSettings(broker=broker, **({"timeout": SHORT_TIMEOUT} | settings))))


def list_problem_codes(findings):
    """List the codes of the problems among the findings."""
    return [finding.code for finding in findings if finding.state == "problem"]


def find_problem(broker, **settings):
    """Find the single problem of a device with these settings, which must name a remedy."""
    (problem,) = [
        finding for finding in list_findings(broker, **settings) if finding.state == "problem"
    ]
    assert problem.text
    assert problem.remedy
    return problem


@pytest.fixture(scope="module")
def broker_files(tmp_path_factory):
    """Certificates and access list of a broker that requires certificates."""
    return make_broker_folder(tmp_path_factory.mktemp("doctor") / "broker")


@pytest.fixture(scope="module")
def secure_broker(broker_files):
    with SecureBroker(broker_files) as broker:
        yield broker


@pytest.fixture
def worker(broker_files, secure_broker, bundle):
    with Worker(bundle, secure_broker.url, **broker_files.worker_arguments("w-1")) as worker:
        yield worker


def find_client_files(broker_files, name="pi-1"):
    """Find the paths of a client's certificate, key and authority by setting."""
    arguments = broker_files.client_arguments(name)
    return {setting: Path(path) for setting, path in arguments.items()}


# -- no problems ------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_healthy_deployment_has_only_ok_findings(broker_files, secure_broker, bundle):
    findings = list_findings(
        secure_broker.url,
        bundle=bundle.path,
        timeout=LONG_TIMEOUT,
        **find_client_files(broker_files),
    )
    assert {finding.state for finding in findings} == {"ok"}, findings
    checks = list(dict.fromkeys(finding.check for finding in findings))
    assert checks == ["installation", "bundle", "broker", "round trip", "worker"]


def test_broker_without_authentication_is_noted(bundle):
    with MosquittoBroker() as broker, Worker(bundle, broker.url):
        findings = list_findings(
            broker.url, bundle=bundle.path, device="pi-1", timeout=LONG_TIMEOUT
        )
    assert list_problem_codes(findings) == []
    assert [finding.code for finding in findings if finding.state == "note"] == ["open-broker"]


def test_request_has_the_values_of_a_device(tmp_path):
    """A request of float32 would have four times as many bytes."""
    image_bundle = pack_image_pair(tmp_path / "pair")
    request, _ = _make_request(DeviceSettings(broker=None), image_bundle)
    assert request.X.dtype == image_bundle.manifest.request_dtype == np.uint8
    with MosquittoBroker() as broker, Worker(image_bundle, broker.url):
        findings = list_findings(
            broker.url, bundle=image_bundle.path, device="pi-1", timeout=LONG_TIMEOUT
        )
    assert list_problem_codes(findings) == []


@pytest.mark.usefixtures("worker")
def test_doctor_leaves_no_retained_messages_and_needs_no_bundle(broker_files, secure_broker):
    findings = list_findings(
        secure_broker.url, timeout=LONG_TIMEOUT, **find_client_files(broker_files, "pi-2")
    )
    assert list_problem_codes(findings) == []
    assert "worker" in [finding.check for finding in findings if finding.state == "ok"]
    with BrokerProbe(
        Endpoint(secure_broker.url, **find_client_files(broker_files, "boss")), 5
    ) as boss:
        boss.subscribe("gw/v1/pi-2/#")
        # The broker sends retained messages right after the subscription.
        assert boss.wait_for_message(lambda *_: True, 0.5) is None


@pytest.mark.parametrize("bind_ids", [False, True])
def test_running_device_is_not_disturbed_unless_ids_are_bound(tmp_path, bundle, bind_ids):
    broker_files = make_broker_folder(tmp_path / "broker", bind_ids=bind_ids)
    with (
        SecureBroker(broker_files) as secure_broker,
        Worker(bundle, secure_broker.url, **broker_files.worker_arguments("w-1")),
    ):
        link = MqttLink(secure_broker.url, device="pi-2", **broker_files.client_arguments("pi-2"))
        with Device(bundle, link=link, deadline_ms=20_000) as device:
            link.connect(LONG_TIMEOUT)
            findings = list_findings(
                secure_broker.url,
                bundle=bundle.path,
                timeout=LONG_TIMEOUT,
                **find_client_files(broker_files, "pi-2"),
            )
            if bind_ids:
                # No problem if the device reconnects only after the doctor has finished.
                assert list_problem_codes(findings) in ([], ["session-taken"])
                wait_until(lambda: link.is_ready, "the device")
            else:
                assert list_problem_codes(findings) == []
                assert any("its value is online" in finding.text for finding in findings)
            assert link.is_ready
            assert device.answer(small_bundle.HARD_ROW).route == "cloud"


def test_broker_that_lets_devices_join_the_worker_pool_is_found(tmp_path):
    with SecureBroker(make_broker_folder(tmp_path / "broker", plugin="none")) as broker:
        findings = list_findings(broker.url, **find_client_files(broker.broker_folder))
    assert "open-pool" in list_problem_codes(findings)


# -- connection to the broker -------------------------------------------------------------------


def test_unknown_host_name_and_closed_port_are_found():
    assert find_problem("mqtt://broker.invalid").code == "dns"
    assert find_problem(f"mqtt://127.0.0.1:{free_port()}").code == "tcp-refused"


def test_tls_to_a_plain_port_and_the_reverse_are_found(broker_files, secure_broker):
    with MosquittoBroker() as plain_broker:
        problem = find_problem(f"mqtts://127.0.0.1:{plain_broker.port}")
        assert problem.code in ("tls-none", "tls-handshake")
    assert find_problem(f"mqtt://127.0.0.1:{broker_files.roster.port}").code == "no-greeting"


def test_silent_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        problem = find_problem(f"mqtt://127.0.0.1:{silent_server.getsockname()[1]}", timeout=0.3)
    assert problem.code == "no-greeting"
    assert "0.3 s" in problem.text  # the timeout
    with socket.create_server(("127.0.0.1", 0)) as silent_server:  # without a TLS handshake
        problem = find_problem(f"mqtts://127.0.0.1:{silent_server.getsockname()[1]}", timeout=0.3)
    assert problem.code == "tls-handshake"


def make_shifted_clock(days):
    """Make a clock that is some days ahead, or behind if they are negative."""
    return lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


# A server's certificate is valid for 397 days; one from the future means a slow clock.
@pytest.mark.parametrize(("shift_days", "code"), [(-500, "tls-expired"), (20, "clock-behind")])
def test_server_certificate_outside_its_validity_is_found(tmp_path, broker_files, shift_days, code):
    """The authority is valid, and the server's certificate is issued `shift_days` days from now."""
    folder = tmp_path / "broker"
    # The running broker may write its state during the copy.
    shutil.copytree(broker_files.folder, folder, ignore=shutil.ignore_patterns("mosquitto.db*"))
    (folder / "server.crt").unlink()
    port = free_port()
    reissued_files = init_broker(
        folder, clock=make_shifted_clock(shift_days), port=port, run_as=mosquitto_user()
    )
    with SecureBroker(reissued_files) as broker:
        assert find_problem(broker.url, **find_client_files(reissued_files)).code == code


def test_wrong_host_name_and_unknown_authority_are_found(tmp_path, broker_files, secure_broker):
    other_files = make_broker_folder(tmp_path / "other", hosts=["broker.example"])
    with SecureBroker(other_files) as broker:
        problem = find_problem(broker.url, **find_client_files(other_files))
        assert problem.code == "tls-host"
        assert "not valid for" in problem.text
    mixed_files = find_client_files(broker_files) | {
        "ca_file": find_client_files(other_files)["ca_file"]
    }
    assert find_problem(secure_broker.url, **mixed_files).code == "tls-unknown-ca"


# -- the client's own certificate, and login -----------------------------------------------------


def test_missing_client_certificate_is_found(broker_files, secure_broker):
    problem = find_problem(secure_broker.url, ca_file=find_client_files(broker_files)["ca_file"])
    assert problem.code == "certificate-required"


@pytest.mark.parametrize(
    ("shift_days", "code"), [(0, "certificate-refused"), (-1000, "own-certificate-expired")]
)
def test_untrusted_or_expired_client_certificate_is_found(
    tmp_path, broker_files, secure_broker, shift_days, code
):
    other_files = find_client_files(
        make_broker_folder(tmp_path / "other", clock=make_shifted_clock(shift_days))
    )
    mixed_files = other_files | {"ca_file": find_client_files(broker_files)["ca_file"]}
    assert find_problem(secure_broker.url, **mixed_files).code == code


def test_certificate_of_another_device_and_wrong_key_are_found(broker_files, secure_broker):
    problem = find_problem(secure_broker.url, device="pi-2", **find_client_files(broker_files))
    assert problem.code == "own-certificate-name"
    mixed_files = find_client_files(broker_files) | {
        "key_file": find_client_files(broker_files, "pi-2")["key_file"]
    }
    assert find_problem(secure_broker.url, **mixed_files).code == "own-certificate-unusable"


@pytest.fixture
def start_broker(tmp_path):
    """Start mosquitto with extra lines in its configuration."""
    brokers = []

    def start_mosquitto(*lines):
        brokers.append(Mosquitto(tmp_path, *lines))
        return brokers[-1].url

    yield start_mosquitto
    for broker in brokers:
        broker.kill()


def test_refused_login_is_found(start_broker):
    url = start_broker("allow_anonymous false", "set_tcp_nodelay true")
    assert find_problem(url).code == "login"


# -- access lists --------------------------------------------------------------------------------

WORKER_RULE = "topic readwrite #"


def write_access_list(tmp_path, *rules):
    """Write an access list with these rules for the device pi-1; return configuration lines."""
    path = tmp_path / "acl"
    path.write_text("\n".join(["user w", WORKER_RULE, "user pi-1", *rules, ""]))
    path.chmod(0o600)
    password_file = tmp_path / "passwords"
    password_program = find_mosquitto().parent.parent / "bin" / "mosquitto_passwd"
    password_file.unlink(missing_ok=True)
    password_file.touch(0o600)
    for user in ("w", "pi-1"):  # each user's password is its name
        subprocess.run([password_program, "-b", password_file, user, user], check=True)
    return ("allow_anonymous false", "set_tcp_nodelay true", f"acl_file {path}",
            f"password_file {password_file}")  # fmt: skip


#: Rules of the topics that a device publishes: requests, its status and its metrics.
OWN_TOPIC_RULES = [f"topic readwrite gw/v1/pi-1/{level}" for level in ("req", "status")]
RESPONSE_RULE = "topic read gw/v1/pi-1/rsp"


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ([*OWN_TOPIC_RULES[1:], RESPONSE_RULE], "publish-denied"),
        (OWN_TOPIC_RULES, "subscription-denied"),
        ([OWN_TOPIC_RULES[0], *OWN_TOPIC_RULES[2:], RESPONSE_RULE], "status-denied"),
    ],
)
def test_denied_topic_of_the_access_list_is_found(start_broker, tmp_path, bundle, rules, code):
    url = start_broker(*write_access_list(tmp_path, *rules))
    with Worker(bundle, url.replace("//", "//w:w@")):
        problem = find_problem(url.replace("//", "//pi-1:pi-1@"), device="pi-1", bundle=bundle.path)
    assert problem.code == code


# -- workers and models --------------------------------------------------------------------------


def test_missing_worker_is_found(broker_files, secure_broker, bundle):
    problem = find_problem(secure_broker.url, bundle=bundle.path, **find_client_files(broker_files))
    assert problem.code == "no-worker"


def test_missing_worker_is_found_on_a_broker_without_reason_codes():
    """The embedded broker supports only MQTT 3.1.1."""
    with EmbeddedBroker() as broker:
        assert find_problem(broker.url, device="pi-1").code == "no-worker"


def test_worker_with_another_version_is_found(tmp_path, broker_files, secure_broker, bundle):
    newer_bundle = small_bundle.write_bundle(tmp_path / "newer", version="8")
    with Worker(newer_bundle, secure_broker.url, **broker_files.worker_arguments("w-1")):
        problem = find_problem(
            secure_broker.url, bundle=bundle.path, **find_client_files(broker_files)
        )
    assert problem.code == "no-model"
    assert "small 7" in problem.text


def test_pool_that_serves_another_version_is_ignored(tmp_path, bundle):
    newer_bundle = small_bundle.write_bundle(tmp_path / "newer", version="8")
    with (
        MosquittoBroker() as broker,
        Worker(bundle, broker.url),
        Worker(newer_bundle, broker.url, pool="newer"),
    ):
        findings = list_findings(
            broker.url, bundle=bundle.path, device="pi-1", timeout=LONG_TIMEOUT
        )
    assert list_problem_codes(findings) == []


# -- limits ----------------------------------------------------------------------------------------


def test_packet_limit_of_the_broker_is_found(start_broker, bundle):
    """A broker that speaks MQTT 5 states its limit, here fewer bytes than a request has."""
    url = start_broker("allow_anonymous true", "max_packet_size 80")
    problem = find_problem(url, bundle=bundle.path, device="d1")
    assert (problem.check, problem.code) == ("round trip", "packet-limit")


# -- the machine itself ----------------------------------------------------------------------------


def test_failed_self_test_and_unreadable_bundle_are_found(tmp_path, bundle):
    bundle_copy = tmp_path / "spoilt"
    shutil.copytree(bundle.path, bundle_copy)
    # the outputs of the reversed sample are wrong, but every hash is correct
    arrays = dict(np.load(bundle_copy / "sample.npz"))
    content = io.BytesIO()
    np.savez(content, **arrays | {"X": arrays["X"][::-1]})
    replace_file(bundle_copy, "sample.npz", content.getvalue())
    assert find_problem(None, bundle=bundle_copy).code == "self-test"
    (bundle_copy / "stage_0.onnx").write_bytes(b"noise")
    assert find_problem(None, bundle=bundle_copy).code == "bundle-unusable"


def test_clock_behind_the_bundle_is_found(tmp_path):
    # More than the doctor tolerates between the clocks of two machines.
    future_time = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=40)
    path = small_bundle.write_bundle(tmp_path / "future", created=future_time.isoformat()).path
    assert find_problem(None, bundle=path).code == "clock-behind"


def test_missing_library_is_found(tmp_path):
    """The environment has links to all installed libraries except cbor2."""
    site_packages = Path(cbor2.__file__).parents[1]
    for entry in site_packages.iterdir():
        if not entry.name.lower().startswith(("cbor2", "_cbor2", "__pycache__")):
            (tmp_path / entry.name).symlink_to(entry)
    package_folders = [str(folder.parent) for folder in PACKAGES.values()]
    process = subprocess.run(
        [sys.executable, "-S", "-m", "gatewise", "doctor", "--json", "--broker",
         "mqtt://127.0.0.1:1"],
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path), *package_folders]), "PATH": os.defpath},
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 1, process.stderr
    finding = json.loads(process.stdout)["findings"][1]
    assert (finding["state"], finding["code"]) == ("problem", "package-missing")
    assert "cbor2" in finding["text"]


def test_round_trip_longer_than_the_default_deadline_is_noted():
    default_deadline = EdgeSettings(bundle=Path("bundle")).deadline_ms
    finding = _rate_round_trip("gw/v1/pi-1/req", default_deadline, 9.0)
    assert (finding.state, finding.code) == ("note", "slow")
    assert f"--deadline-ms {3 * default_deadline:.0f}" in finding.remedy
    assert _rate_round_trip("gw/v1/pi-1/req", default_deadline - 1, 9.0).state == "ok"


def test_round_trip_through_a_slow_worker_is_noted(bundle):
    """A device waits for the worker as well."""

    def answer_slowly(request):
        time.sleep(0.5)  # the default deadline
        return [small_bundle.answer_to(request, worker_us=500_000)]

    with MosquittoBroker() as broker, closing(SimulatedWorker(broker.url, answer_slowly)):
        findings = list_findings(
            broker.url, bundle=bundle.path, device="pi-1", timeout=LONG_TIMEOUT
        )
    (finding,) = [finding for finding in findings if finding.code == "slow"]
    assert "of which the worker takes 500.0 ms" in finding.text
