"""A fleet with injected failures: mosquitto, workers and devices as processes on a test network."""

import contextlib
import functools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gatewise_cloud.broker.broker import find_mosquitto, mosquitto_config
from gatewise_cloud.child_process import ChildProcess
from gatewise_edge.link.broker_url import Endpoint
from tests.support.ports import free_port
from tests.support.waiting import wait_until

DEVICE = Path(__file__).with_name("device_main.py")
HOSTILE = Path(__file__).with_name("hostile_main.py")
PORT = 1883
#: Delay in ms that the scheduling of a busy machine may cause.
SLACK_MS = 50.0


# -- networks ------------------------------------------------------------------------------


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Namespaces:
    """Two hosts, ``cloud`` and ``field``, as network namespaces, and a link that can be cut."""

    def __init__(self):
        tag = secrets.token_hex(3)
        self._cloud = f"gwc-{tag}"
        self._field = f"gwf-{tag}"
        self._wire = f"gw{tag}"
        self.port = PORT
        self.url = f"mqtt://10.77.0.1:{PORT}"
        self.worker_url = f"mqtt://127.0.0.1:{PORT}"
        try:
            for name in (self._cloud, self._field):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", self._cloud, "link", "add", self._wire, "type", "veth",
                "peer", "name", self._wire, "netns", self._field)  # fmt: skip
            for name, address in ((self._cloud, "10.77.0.1/30"), (self._field, "10.77.0.2/30")):
                _ip("-n", name, "addr", "add", address, "dev", self._wire)
                _ip("-n", name, "link", "set", self._wire, "up")
        except BaseException:
            self.close()
            raise

    def in_cloud(self, command):
        return ["ip", "netns", "exec", self._cloud, *command]

    def in_field(self, command):
        return ["ip", "netns", "exec", self._field, *command]

    def cut(self):
        _ip("-n", self._field, "link", "set", self._wire, "down")

    def mend(self):
        _ip("-n", self._field, "link", "set", self._wire, "up")

    def close(self):
        for name in (self._cloud, self._field):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Proxied:
    """One host, on which devices reach the broker through a proxy that can stop forwarding."""

    def __init__(self):
        self.port = free_port()
        self.worker_url = f"mqtt://127.0.0.1:{self.port}"
        self._silent = threading.Event()
        self._ended = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                device, _ = self._door.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                device.close()
                continue
            for source, destination in ((device, broker), (broker, device)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                arguments = (source, destination)
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, source, destination):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while self._silent.is_set() and not self._ended.is_set():
                    self._ended.wait(0.02)
                destination.sendall(data)
        for open_socket in (source, destination):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        source.close()  # the thread of the other direction closes `destination`

    def in_cloud(self, command):
        return command

    in_field = in_cloud

    def cut(self):
        self._silent.set()

    def mend(self):
        self._silent.clear()

    def close(self):
        self._ended.set()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._door.close()


def namespaces_work():
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
        super().__init__(job["device"], command, on_message=self._keep, captures_stderr=False)
        self.send(job)

    def _keep(self, _, event):
        if event is not None:
            self.events.append(event)

    def heard(self, event):
        return [e for e in self.events if e["event"] == event]

    @property
    def ready(self):
        assert self.is_alive, f"{self.name} ended before it was ready"
        return bool(self.heard("ready"))

    def go(self):
        self.send({"go": True})

    @property
    def done(self):
        if not self.is_alive:
            failure = self.wait_for_failure()
            assert self.heard("done"), f"{self.name}: {failure}"
        return bool(self.heard("done"))

    def answers(self, count=None):
        """Get the answers; assert that none is an error, lost or duplicated, and check `count`."""
        assert self.heard("error") == []
        answers = self.heard("answer")
        assert [a["number"] for a in answers] == list(range(len(answers)))
        assert count in (None, len(answers))
        return answers

    def late(self):
        """Split the answers more than 50 ms after their deadline into excused and other ones.

        An answer is excused if the control timer of the process was late by the same time.
        """
        control = self.heard("done")[0]["control_ms"]
        late = [a for a in self.heard("answer") if a["late_ms"] > SLACK_MS]
        excused = [a for a in late if control[str(a["number"])] >= a["late_ms"]]
        return excused, [a for a in late if a not in excused]


class Rig:
    """Broker, workers and devices on a network; `close` ends all of them."""

    def __init__(self, network, folder):
        self.network = network
        self.folder = folder
        self.killed = {"worker": 0, "broker": 0}
        self._config = folder / "mosquitto.conf"
        self._config.write_text(mosquitto_config(network.port, host="0.0.0.0"))
        self._broker = None
        self._workers = {}
        self._all = []

    # the cloud

    def _start(self, command):
        child = ChildProcess(command[-1], self.network.in_cloud(command), follows_input=False)
        self._all.append(child)
        return child

    def start_broker(self):
        self._broker = self._start([str(find_mosquitto()), "-c", str(self._config)])
        probe = f"import socket; socket.create_connection(('127.0.0.1', {self.network.port}), 1)"
        words = self.network.in_cloud([sys.executable, "-S", "-c", probe])
        wait_until(lambda: subprocess.run(words, capture_output=True).returncode == 0, "the broker")

    def kill_broker(self):
        self._broker.kill()
        wait_until(lambda: not self._broker.is_alive, "the broker's end")
        self.killed["broker"] += 1

    def start_worker(self, number, *bundles, options=()):
        words = [sys.executable, "-m", "gatewise", "cloud", *map(str, bundles), *options]
        self._workers[number] = self._start([*words, "--broker", self.network.worker_url])

    @property
    def troubles(self):
        """Text that the broker and the workers wrote to standard error."""
        return "".join(child.stderr_text() for child in self._all)

    def kill_worker(self, number):
        worker = self._workers[number]
        if worker.is_alive:
            worker.kill()
            self.killed["worker"] += 1
        wait_until(lambda: not worker.is_alive, "the worker's end")

    def start_server(self, words):
        """Start another Python program in the cloud; `words` are its command line."""
        self._workers[words[0]] = self._start([sys.executable, *words])

    # the field

    def start_hostile(self, bundle):
        """Start a hostile device."""
        hostile = DeviceProcess(
            self.network.in_field([sys.executable, str(HOSTILE)]),
            {"device": "hostile", "bundle": str(bundle), "url": self.network.url}
            | {k: getattr(Endpoint(self.network.url), k) for k in ("host", "port")},
        )
        self._all.append(hostile)
        return hostile

    def start_device(self, name, bundle, rows, order, **options):
        table = self.folder / f"{name}.npy"
        np.save(table, rows)
        job = {
            "device": name, "bundle": str(bundle), "rows": str(table), "order": list(order),
            "broker": self.network.url, "rate": 1000.0, "deadline_ms": 500.0, **options,
        }  # fmt: skip
        device = DeviceProcess(self.network.in_field([sys.executable, str(DEVICE)]), job)
        self._all.append(device)
        return device

    def go(self, devices):
        """Start all devices at the same time, once they are ready."""
        wait_until(lambda: all(d.ready for d in devices), "the fleet", 120)
        for device in devices:
            device.go()

    def end(self, devices):
        """Stop devices that answer until they are stopped."""
        for device in devices:
            device.send({"end": True})
        wait_until(lambda: all(d.done for d in devices), "the last answer", 60)

    def close(self):
        for child in self._all:
            child.kill()
            child.close()
        self.network.close()


@pytest.fixture
def rig(tmp_path):
    yield from _rig(Namespaces() if namespaces_work() else Proxied(), tmp_path)


@pytest.fixture
def proxied_rig(tmp_path):
    yield from _rig(Proxied(), tmp_path)


def _rig(network, folder):
    test_rig = Rig(network, folder)
    yield test_rig
    test_rig.close()


class Packed:
    """A small system, its bundle, and test rows."""

    def __init__(self, folder, make, name="model"):
        from gatewise_export import pack
        from gatewise_training.data import datasets

        data = datasets.load("digits")
        train = np.arange(0, 1600, 2)
        test = np.arange(1, 1600, 2)
        self.system, rows = make(data.X, data.y, train)
        self.rows = rows[test]
        self.truth = data.y[test]
        bundle = pack(self.system, folder / "bundle", sample=rows[train[:16]], name=name)
        self.bundle = bundle.path

    @functools.cache  # noqa: B019  only two objects exist
    def edge_only(self):
        """Compute the class indices of the device's answers without offloads."""
        from gatewise_edge import Device

        with Device(self.bundle, policy="edge-only") as device:
            return np.array([device.answer(row).class_index for row in self.rows])

    def differing(self, answers):
        """Find answers that differ from the system's, or for fallbacks from its stages'."""
        offloaded = self.system.offload(self.rows)
        whole = np.searchsorted(self.system.classes_, self.system.predict(self.rows))
        alone = self.edge_only()
        return [
            a
            for a in answers
            if a["label"] != (alone if a["route"] == "fallback" else whole)[a["row"]]
            or offloaded[a["row"]] != (a["route"] != "edge")
        ]


def _of_features(x, y, train):
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_training import methods

    f0 = ExtraTreesClassifier(60, random_state=0).fit(x[train], y[train])
    system = methods.cascade(
        "staged", high_cost_model=f0, n_stages=2, families=("linear",), offload_rate=0.3,
        effort="low", random_state=0,
    )  # fmt: skip
    return system.fit(x[train], y[train]), x


def _of_windows(x, y, train):
    """Fit stages of blocks, and a high-cost model that reads the windows (images of bytes)."""
    from sklearn.ensemble import ExtraTreesClassifier

    import gatewise_signals as sig
    from gatewise.costs import CloudPrices
    from gatewise_training import StagedCascade

    windows = x.reshape(-1, 8, 8).astype(np.uint8)
    pixels = sig.Pixels(price=0.5)
    thumbnail = sig.Thumbnail(pixels, 3, 3, price=1.0)
    system = StagedCascade(
        ExtraTreesClassifier(60, random_state=0), high_cost_input="window", n_stages=2,
        blocks=[thumbnail, sig.BlockStatistics(pixels, 2, 2, price=6.0)], families=("linear",),
        cloud_prices=CloudPrices(request=3.0, byte=0.01), offload_rate=0.3, effort="low",
        random_state=0,
    )  # fmt: skip
    return system.fit(windows[train], y[train]), windows


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    return Packed(tmp_path_factory.mktemp("chaos"), _of_features)


@pytest.fixture(scope="session")
def packed_windows(tmp_path_factory):
    """A bundle with blocks, for which requests contain raw windows."""
    return Packed(tmp_path_factory.mktemp("chaos-windows"), _of_windows, "windows")
