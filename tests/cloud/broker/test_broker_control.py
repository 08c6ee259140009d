"""Adding and revoking clients of a running broker that keeps its other connections."""

from __future__ import annotations

import json
import shutil

import pytest

from gatewise.cli import main
from gatewise_cloud.broker import broker_control
from gatewise_cloud.broker.broker_control import (
    apply_roles,
    operator_endpoint,
    read_clients_with_rights,
)
from gatewise_cloud.broker.broker_init import find_plugin
from gatewise_edge.errors import LinkError
from gatewise_edge.link.mqtt_link import MqttLink
from gatewise_edge.link.wire import LABEL_TOPICS, REQUEST_TOPICS, shared_subscription
from tests.support.mosquitto import SecureBroker, make_broker_folder
from tests.support.mqtt_clients import MqttClient
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,  # a broker with TLS starts
    pytest.mark.skipif(find_plugin() is None, reason="needs mosquitto's dynamic security plugin"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: Seconds to wait for the first connection on a loaded machine.
CONNECT_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    folder = make_broker_folder(tmp_path_factory.mktemp("control") / "broker")
    with SecureBroker(folder) as running_broker:
        yield running_broker


def run_broker_command(broker, capsys, *arguments):
    """Run `gatewise broker` on the folder of a broker; return the document that it prints."""
    options = ["--dir", str(broker.broker_folder.folder), "--broker", broker.url, "--json"]
    assert main(["broker", *arguments, *options]) == 0
    return json.loads(capsys.readouterr().out)


def make_link(broker, name):
    return MqttLink(broker.url, device=name, **broker.broker_folder.client_arguments(name))


def list_clients(broker, capsys):
    """List the clients of a broker by their names."""
    document = run_broker_command(broker, capsys, "list")
    return {client["name"]: client for client in document["clients"]}


def test_devices_are_added_and_revoked_without_a_restart(broker, capsys):
    first_link = make_link(broker, "pi-1")
    first_link.connect(CONNECT_TIMEOUT_S)
    document = run_broker_command(broker, capsys, "add", "pi-8", "pi-9")
    assert document["applied"]
    assert len(document["made"]) == 2
    second_link = make_link(broker, "pi-9")
    second_link.connect(CONNECT_TIMEOUT_S)
    added_client = list_clients(broker, capsys)["pi-9"]
    assert added_client["role"] == "devices"
    assert (added_client["rights"], added_client["status"]) == (True, "online")

    assert run_broker_command(broker, capsys, "revoke", "pi-9")["applied"]
    wait_until(lambda: not second_link.is_ready, "the end of the revoked connection")
    with pytest.raises(LinkError, match="closed the connection"):
        second_link.connect(10)
    second_link.close()
    revoked_client = list_clients(broker, capsys)["pi-9"]
    assert (revoked_client["rights"], revoked_client["status"]) == (False, None)
    assert (first_link.is_ready, first_link.connection_number) == (True, 1)
    first_link.close()

    run_broker_command(broker, capsys, "add", "pi-9")
    restored_link = make_link(broker, "pi-9")
    restored_link.connect(CONNECT_TIMEOUT_S)
    restored_link.close()


def test_revoked_client_has_no_rights_and_after_a_reload_no_connection(broker, capsys, tmp_path):
    """Also if another client gets its name."""
    folder = broker.broker_folder
    run_broker_command(broker, capsys, "add", "pi-6")
    old_files = folder.client_arguments("pi-6")
    for key in ("cert_file", "key_file"):
        old_files[key] = shutil.copy(old_files[key], tmp_path)
    run_broker_command(broker, capsys, "revoke", "pi-6")
    worker = MqttClient(broker.url, REQUEST_TOPICS, files=folder.client_arguments("w-1"))
    revoked_client = MqttClient(broker.url, files=old_files)
    revoked_client.publish("gw/v1/pi-6/req", b"a request of a revoked client")
    device = MqttClient(broker.url, files=folder.client_arguments("pi-2"))
    device.publish("gw/v1/pi-2/req", b"a request")
    assert worker.get() == ("gw/v1/pi-2/req", b"a request")
    for client in (worker, revoked_client, device):
        client.close()
    arguments = ["--dir", str(folder.folder), "--broker", broker.url]
    assert main(["broker", "add", "pi-6", *arguments]) == 0
    assert "refuses the old certificate of pi-6 only after" in capsys.readouterr().err
    other_link = make_link(broker, "pi-1")
    other_link.connect(CONNECT_TIMEOUT_S)

    broker.reload()
    old_link = MqttLink(broker.url, device="pi-6", **old_files)
    with pytest.raises(LinkError, match="closed the connection"):
        old_link.connect(10)
    new_link = make_link(broker, "pi-6")
    new_link.connect(CONNECT_TIMEOUT_S)
    assert (other_link.is_ready, other_link.connection_number) == (True, 1)
    for link in (old_link, new_link, other_link):
        link.close()


def test_revocation_is_repeated_after_the_broker_was_out_of_reach(broker, capsys):
    run_broker_command(broker, capsys, "add", "pi-4")
    folder = str(broker.broker_folder.folder)
    closed_url = f"mqtts://127.0.0.1:{free_port()}"
    assert main(["broker", "revoke", "pi-4", "--dir", folder, "--broker", closed_url]) == 2
    error_text = capsys.readouterr().err
    assert "the running broker may not be: run this command again" in error_text
    assert error_text.count("\n") == 1
    client = list_clients(broker, capsys)["pi-4"]
    assert (client["role"], client["rights"]) == ("revoked", True)
    assert run_broker_command(broker, capsys, "revoke", "pi-4")["applied"]
    assert list_clients(broker, capsys)["pi-4"]["rights"] is False


def test_an_added_device_may_not_subscribe_to_the_pool(broker, capsys, caplog):
    run_broker_command(broker, capsys, "add", "pi-7")
    link = make_link(broker, "pi-7")
    link.watch(shared_subscription(broker.broker_folder.roster.pool), lambda payload: None)
    link.connect(CONNECT_TIMEOUT_S)
    wait_until(
        lambda: f"{broker.broker_folder.roster.pool}/gw/v1/+/req is not allowed" in caplog.text
    )
    link.close()


def test_an_added_labeller_may_send_labels_but_no_requests(broker, capsys):
    run_broker_command(broker, capsys, "add", "bench-9", "--labeller")
    run_broker_command(broker, capsys, "add", "w-9", "--worker")
    clients = list_clients(broker, capsys)
    assert (clients["bench-9"]["role"], clients["w-9"]["role"]) == ("labellers", "workers")
    client_arguments = broker.broker_folder.client_arguments
    worker = MqttClient(broker.url, LABEL_TOPICS, REQUEST_TOPICS, files=client_arguments("w-9"))
    labeller = MqttClient(broker.url, files=client_arguments("bench-9"))
    labeller.publish("gw/v1/bench-9/req", b"a request")
    labeller.publish("gw/v1/bench-9/labels", b"a label")
    assert worker.get() == ("gw/v1/bench-9/labels", b"a label")
    for client in (worker, labeller):
        client.close()


def test_only_an_operator_may_change_roles(broker, monkeypatch):
    endpoint = operator_endpoint(broker.broker_folder, broker.url)
    # more clients than one message has commands for (100)
    role_of_client = {f"bulk-{i}": "devices" for i in range(250)}
    apply_roles(endpoint, role_of_client, broker.broker_folder.roster.pool)
    assert read_clients_with_rights(endpoint, role_of_client) == role_of_client.keys()
    device = make_link(broker, "pi-2")
    with monkeypatch.context() as patch:
        # The broker drops the commands of a device, so that the call waits for the timeout.
        patch.setattr(broker_control, "_TIMEOUT_SECONDS", 3.0)
        with pytest.raises(LinkError, match=r"may not control it|does not answer"):
            apply_roles(device._endpoint, {"x": "devices"}, "pool")
    assert not read_clients_with_rights(endpoint, ["x"])


def test_broker_add_refuses_a_folder_without_a_roster(tmp_path, capsys):
    assert main(["broker", "add", "pi-1", "--dir", str(tmp_path)]) == 2
    assert "was not made by gatewise broker init" in capsys.readouterr().err
