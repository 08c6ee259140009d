"""Fixtures of a fleet on a test network; tests kill its processes, or cut off its parts."""

import functools
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gatewise_cloud.broker.broker import LOOPBACK, find_mosquitto, mosquitto_config
from gatewise_cloud.child_process import ChildProcess
from gatewise_edge.link.endpoint import Endpoint
from tests.support.ports import free_port
from tests.support.relay import Relay
from tests.support.waiting import wait_until

DEVICE_PROGRAM = Path(__file__).with_name("device_main.py")
HOSTILE_PROGRAM = Path(__file__).with_name("hostile_main.py")
#: Default port of MQTT, which is free in a new namespace.
BROKER_PORT = 1883
#: Of the 800 training rows; the others are validation rows.
N_FIT_ROWS = 500
#: Seconds in which all processes start on a busy machine.
START_SECONDS = 300
#: Delay in ms that the scheduling of a busy machine may cause.
TOLERANCE_MS = 50.0


# -- networks ------------------------------------------------------------------------------


def _run_ip(*arguments):
    """Run the command `ip`, which must succeed."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class NamespaceNetwork:
    """Two hosts, ``cloud`` and ``field``, as network namespaces, and a link that can be cut."""

    def __init__(self):
        suffix = secrets.token_hex(3)  # an interface's name has at most 15 characters
        self._cloud = f"gwc-{suffix}"
        self._field = f"gwf-{suffix}"
        self._interface = f"gw{suffix}"
        self.port = BROKER_PORT
        self.url = f"mqtt://10.77.0.1:{BROKER_PORT}"
        self.worker_url = f"mqtt://127.0.0.1:{BROKER_PORT}"
        try:
            for name in (self._cloud, self._field):
                _run_ip("netns", "add", name)
                _run_ip("-n", name, "link", "set", "lo", "up")
            _run_ip("-n", self._cloud, "link", "add", self._interface, "type", "veth",
                "peer", "name", self._interface, "netns", self._field)  # fmt: skip
            # a private network of two hosts
            for name, address in ((self._cloud, "10.77.0.1/30"), (self._field, "10.77.0.2/30")):
                _run_ip("-n", name, "addr", "add", address, "dev", self._interface)
                _run_ip("-n", name, "link", "set", self._interface, "up")
        except BaseException:
            self.close()
            raise

    def cloud_command(self, command):
        return ["ip", "netns", "exec", self._cloud, *command]

    def field_command(self, command):
        return ["ip", "netns", "exec", self._field, *command]

    def set_link(self, state):
        """Set the link "up" or "down"."""
        _run_ip("-n", self._field, "link", "set", self._interface, state)

    def close(self):
        for name in (self._cloud, self._field):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class RelayNetwork(Relay):
    """One host, on which devices reach the broker through a relay that can stop forwarding."""

    def __init__(self):
        self.port = free_port()
        self.worker_url = f"mqtt://127.0.0.1:{self.port}"
        super().__init__(self.port)

    def cloud_command(self, command):
        return command

    field_command = cloud_command

    def set_link(self, state):
        self.holds_bytes = state == "down"


def can_make_namespaces():
    """Tell whether this process may create network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"gwt-{secrets.token_hex(3)}"
    is_allowed = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if is_allowed:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return is_allowed


# -- processes -----------------------------------------------------------------------------


class DeviceProcess(ChildProcess):
    """A device process that records the events of its output."""

    def __init__(self, command, job):
        self.events = []
        super().__init__(
            job["device"], command, on_message=self._record_event, captures_stderr=False
        )
        self.send(job)

    def _record_event(self, _, event):
        if event is not None:
            self.events.append(event)

    def find_events(self, event_name):
        return [recorded for recorded in self.events if recorded["event"] == event_name]

    @property
    def is_ready(self):
        assert self.is_alive, f"{self.name} ended before it was ready"
        return bool(self.find_events("ready"))

    def start_answering(self):
        self.send({"go": True})

    @property
    def is_done(self):
        if not self.is_alive:
            failure = self.wait_for_failure()
            assert self.find_events("done"), f"{self.name}: {failure}"
        return bool(self.find_events("done"))

    def read_answers(self, n_expected=None):
        """Read the answers; assert that none is an error, lost or duplicated, and count them."""
        assert self.find_events("error") == []
        answers = self.find_events("answer")
        assert [answer["number"] for answer in answers] == list(range(len(answers)))
        assert n_expected in (None, len(answers))
        return answers

    def split_late_answers(self):
        """Split the answers more than 50 ms after their deadline into excused and other ones.

        An answer is excused if the control timer of the process was late by the same time.
        """
        delays_ms = self.find_events("done")[0]["delays_ms"]
        excused_answers, other_answers = [], []
        for answer in self.find_events("answer"):
            if answer["late_ms"] > TOLERANCE_MS:
                is_excused = delays_ms[str(answer["number"])] >= answer["late_ms"]
                (excused_answers if is_excused else other_answers).append(answer)
        return excused_answers, other_answers


class ChaosFleet:
    """Broker, workers and devices on a network; `close` ends all of them."""

    def __init__(self, network, folder):
        self.network = network
        self.folder = folder
        self.n_killed = {"worker": 0, "broker": 0}
        self._config = folder / "mosquitto.conf"
        config = mosquitto_config(network.port).replace(LOOPBACK, "0.0.0.0")
        self._config.write_text(config)
        self._broker = None
        self._workers = {}
        self._ready_workers = set()
        self._children = []

    # the cloud

    def _start_cloud_process(self, command, **options):
        command = self.network.cloud_command(command)
        child = ChildProcess(command[-1], command, follows_input=False, **options)
        self._children.append(child)
        return child

    def start_broker(self):
        self._broker = self._start_cloud_process([str(find_mosquitto()), "-c", str(self._config)])
        probe_code = (
            f"import socket; socket.create_connection(('127.0.0.1', {self.network.port}), 1)"
        )
        probe_command = self.network.cloud_command([sys.executable, "-S", "-c", probe_code])
        wait_until(
            lambda: subprocess.run(probe_command, capture_output=True).returncode == 0, "the broker"
        )

    def kill_broker(self):
        self._broker.kill()
        wait_until(lambda: not self._broker.is_alive, "the broker's end")
        self.n_killed["broker"] += 1

    def start_worker(self, number, *bundles, options=()):
        command = [sys.executable, "-m", "gatewise", "cloud", *map(str, bundles), *options]
        self._ready_workers.discard(number)
        self._workers[number] = self._start_cloud_process(
            [*command, "--broker", self.network.worker_url, "--json"],
            # the first message says that the worker is ready
            on_message=lambda _, message: message and self._ready_workers.add(number),
        )

    def is_starting(self, number):
        """Whether a worker is not ready yet; it ends if it starts without a broker."""
        return self._workers[number].is_alive and number not in self._ready_workers

    def kill_worker(self, number):
        worker = self._workers[number]
        if worker.is_alive:
            worker.kill()
            self.n_killed["worker"] += 1
        wait_until(lambda: not worker.is_alive, "the worker's end")

    def start_program(self, arguments):
        """Start another Python program in the cloud; `arguments` are its command line."""
        self._workers[arguments[0]] = self._start_cloud_process([sys.executable, *arguments])

    # the field

    def start_hostile(self, bundle):
        """Start a hostile device."""
        hostile = DeviceProcess(
            self.network.field_command([sys.executable, str(HOSTILE_PROGRAM)]),
            {"device": "hostile", "bundle": str(bundle), "url": self.network.url}
            | {name: getattr(Endpoint(self.network.url), name) for name in ("host", "port")},
        )
        self._children.append(hostile)
        return hostile

    def start_device(self, name, bundle, rows, row_order, **options):
        rows_path = self.folder / f"{name}.npy"
        np.save(rows_path, rows)
        job = {
            "device": name, "bundle": str(bundle), "rows": str(rows_path), "order": list(row_order),
            # by default one instance after another, without pauses
            "broker": self.network.url, "rate": 1000.0, "deadline_ms": 500.0, **options,
        }  # fmt: skip
        device = DeviceProcess(
            self.network.field_command([sys.executable, str(DEVICE_PROGRAM)]), job
        )
        self._children.append(device)
        return device

    def wait_for_devices(self, devices):
        """Wait until all devices are ready; many processes start slowly on a small machine."""
        wait_until(lambda: all(device.is_ready for device in devices), "the fleet", START_SECONDS)

    def start_answering(self, devices):
        """Start all devices at the same time, once they are ready."""
        self.wait_for_devices(devices)
        for device in devices:
            device.start_answering()

    def stop_devices(self, devices):
        """Stop devices that answer until they are stopped."""
        for device in devices:
            device.send({"end": True})
        wait_until(lambda: all(device.is_done for device in devices), "the last answer", 120)

    def close(self):
        for child in self._children:
            child.kill()
            child.close()
        self.network.close()


@pytest.fixture
def fleet(tmp_path):
    """A fleet on namespaces, or on a relay where this process may not create them."""
    fleet = ChaosFleet(NamespaceNetwork() if can_make_namespaces() else RelayNetwork(), tmp_path)
    yield fleet
    fleet.close()


class PackedSystem:
    """A small system, its bundle, and test rows."""

    def __init__(self, folder, fit_system, name="model"):
        from gatewise_export import pack
        from gatewise_training.data import datasets

        data_set = datasets.load("digits")
        # even rows are fitted and odd rows are tested, of most of the 1797 rows
        train_rows = np.arange(0, 1600, 2)
        test_rows = np.arange(1, 1600, 2)
        self.system, rows = fit_system(data_set.X, data_set.y, train_rows)
        self.rows = rows[test_rows]
        self.truth = data_set.y[test_rows]
        bundle = pack(self.system, folder / "bundle", sample=rows[train_rows[:16]], name=name)
        self.bundle = bundle.path

    @functools.cache  # noqa: B019  only two objects exist
    def compute_edge_labels(self):
        """Compute the class indices of the device's answers without offloads."""
        from gatewise_edge import Device

        with Device(self.bundle, policy="edge-only") as device:
            return np.array([device.answer(row).class_index for row in self.rows])

    def find_differing(self, answers):
        """Find answers that differ from the system's, or for fallbacks from its stages'."""
        is_offloaded = self.system.offload(self.rows)
        system_labels = np.searchsorted(self.system.classes_, self.system.predict(self.rows))
        edge_labels = self.compute_edge_labels()
        return [
            answer
            for answer in answers
            if answer["label"]
            != (edge_labels if answer["route"] == "fallback" else system_labels)[answer["row"]]
            or is_offloaded[answer["row"]] != (answer["route"] != "edge")
        ]


def _fit_features(X, y, train_rows):
    """Fit stages and a high-cost model that read features."""
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_training import methods

    X = X.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16)  # a few coarse pixels, to fit fast
    fit_rows, validation_rows = np.split(train_rows, [N_FIT_ROWS])
    system = methods.cascade(
        "staged", high_cost_model=ExtraTreesClassifier(30, random_state=0), n_stages=2,
        families=("linear",), offload_rate=0.3, effort="low", random_state=0,
    )  # fmt: skip
    system.fit(X[fit_rows], y[fit_rows], validation=(X[validation_rows], y[validation_rows]))
    return system, X


def _fit_windows(X, y, train_rows):
    """Fit stages of blocks, and a high-cost model that reads the windows (images of bytes)."""
    from sklearn.ensemble import ExtraTreesClassifier

    import gatewise_signals as sig
    from gatewise.costs import CloudPrices
    from gatewise_training import StagedCascade

    windows = X.reshape(-1, 8, 8).astype(np.uint8)
    fit_rows, validation_rows = np.split(train_rows, [N_FIT_ROWS])
    pixels = sig.Pixels(price=0.5)
    thumbnail = sig.Thumbnail(pixels, 3, 3, price=1.0)
    system = StagedCascade(
        ExtraTreesClassifier(30, random_state=0), high_cost_input="window", n_stages=2,
        blocks=[thumbnail, sig.BlockStatistics(pixels, 2, 2, price=6.0)], families=("linear",),
        cloud_prices=CloudPrices(request=3.0, byte=0.01), offload_rate=0.3, effort="low",
        random_state=0,
    )  # fmt: skip
    validation = windows[validation_rows], y[validation_rows]
    return system.fit(windows[fit_rows], y[fit_rows], validation=validation), windows


@pytest.fixture(scope="session")
def feature_system(tmp_path_factory):
    """A bundle without blocks."""
    return PackedSystem(tmp_path_factory.mktemp("chaos"), _fit_features)


@pytest.fixture(scope="session")
def window_system(tmp_path_factory):
    """A bundle with blocks, for which requests contain raw windows."""
    return PackedSystem(tmp_path_factory.mktemp("chaos-windows"), _fit_windows, "windows")
