"""A running device is updated: real broker, real HTTPS, real bundles."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import paho.mqtt.client as paho
import pytest

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_edge import Device, MqttLink, SensorError
from gatewise_edge.errors import LinkError
from gatewise_edge.link.broker_url import Endpoint
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.update import Store, Updater, publish
from gatewise_edge.update.announcement import encode
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import Signer

pytestmark = pytest.mark.slow  # processes and brokers start

EASY = [1.0, 0, 0, 0, 0, 0]
PATIENCE = 60.0


class Running:
    """A device with its updater, as `gatewise edge` makes them."""

    def __init__(self, folder, broker, keys, server, first, **how):
        self.store = Store(folder, public_key=keys.pub)
        path = self.store.start() or first
        bundle = Bundle.open(path, public_key=keys.pub, for_device=True)
        self.link = MqttLink(broker.url, device="pi-1")
        self.steps = []
        self.updater = Updater(
            self.link,
            self.store,
            model="small",
            public_key=keys.pub,
            hosts=[server.host],
            ca_file=server.ca_file,
            first=first,
            progress=self.steps.append,
            **({"trial_answers": 3} | how),
        )
        self.device = Device(bundle, link=self.link, observe=self.updater.observe, deadline_ms=5e3)
        self.updater.start(self.device)
        self.link.connect(60)

    @property
    def version(self):
        return self.device.bundle.manifest.version

    def close(self):
        self.updater.close()
        self.device.close()


@pytest.fixture
def first(make_gwb):
    return make_gwb("7")


@pytest.fixture
def run(tmp_path, broker, keys, server, first):
    made = []

    def run(**how):
        made.append(Running(tmp_path / "store", broker, keys, server, first, **how))
        return made[-1]

    yield run
    for running in made:
        running.close()


@pytest.fixture
def say(broker):
    """A function that puts a payload on the model's topic, as anybody might."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()

    def say(payload, retain=True):
        topic = manifest_topic("small")
        client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(20)

    yield say
    client.disconnect()
    client.loop_stop()


@pytest.fixture
def offer(server, keys, broker):
    """A function that uploads a bundle and announces it."""

    def offer(path, **how):
        url = server.put(f"/{path.name}", path.read_bytes())
        return publish(path, url, keys.key, Endpoint(broker.url), **how)

    return offer


@pytest.fixture
def until(tools):
    return lambda condition, what: tools.wait_for(condition, what, PATIENCE)


# -- end to end ----------------------------------------------------------------------------


def test_publish_and_back(run, make_gwb, server, keys, broker, make_peer, until, capsys):
    """Publish: the running device switches and says so; publish the older one: it is back."""
    peer = make_peer()
    device = run()
    until(lambda: ("pi-1", "online small/7") in peer.statuses, "the first version's status")
    new = make_gwb("8")
    url = server.put("/small-8.gwb", new.read_bytes())
    command = ["publish", str(new), "--url", url, "--key", str(keys.key), "--broker", broker.url]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["topic"]) == ("8", "gw/v1/model/small/manifest")
    until(lambda: device.version == "8", "version 8")
    until(lambda: ("pi-1", "online small/8") in peer.statuses, "its status")
    assert device.device.answer(EASY).route == "edge"
    assert device.device.answer([0.0] * 6).route == "cloud"
    assert peer.requests[-1].version == "8"
    device.device.answer(EASY)
    until(lambda: "passed" in device.steps, "the trial")
    fetched = len(server.asked)
    newer = make_gwb("9")
    url = server.put("/small-9.gwb", newer.read_bytes())
    assert main(["publish", str(newer), "--url", url, *command[4:]]) == 0
    assert "announced small/9" in capsys.readouterr().out
    until(lambda: device.version == "9", "version 9")
    assert len(server.asked) == fetched + 1
    assert main(command) == 0  # the older one, which is still there
    until(lambda: device.version == "8" and device.steps[-1] == "done", "version 8 again")
    assert len(server.asked) == fetched + 1
    until(lambda: peer.statuses[-1] == ("pi-1", "online small/8"), "its status")
    assert device.updater.counters["taken"] == 3
    names = {p.name for p in device.store.partial.iterdir()}
    assert names == set()
    for path in device.store.bundles.iterdir():
        assert Bundle.open(path, for_device=True).absent() == ("cloud.onnx",)


def test_the_version_survives_a_restart(run, make_gwb, offer, until, server):
    device = run()
    offer(make_gwb("8"))
    until(lambda: "done" in device.steps, "version 8")
    device.close()
    again = run()
    assert again.version == "8"
    until(lambda: again.updater.counters["known"] == 1, "the retained announcement")
    assert len(server.asked) == 1
    assert again.updater.counters["announced"] == 0


# -- announcements -------------------------------------------------------------------------


def test_what_is_not_announced_by_the_operator_is_counted(
    run, make_gwb, offer, announce, keys, say, until
):
    device = run()
    said = offer(make_gwb("8"))
    until(lambda: "done" in device.steps, "version 8")
    old = dataclasses.replace(said, serial=said.serial - 1)
    say(encode(old, Signer(keys.key)))
    say(encode(dataclasses.replace(said, serial=said.serial + 1), Signer(keys.other)))
    say(encode(dataclasses.replace(said, name="other"), Signer(keys.key)))
    say(b"hello")
    say(b"")
    say(encode(said, Signer(keys.key)))
    until(lambda: device.updater.counters["known"] == 1, "all of them")
    counters = device.updater.counters
    assert [counters[n] for n in ("replayed", "forged", "other-name", "malformed")] == [1] * 4
    assert counters["announced"] == counters["taken"] == 1
    assert device.version == "8"


def test_publishing_raises_the_serial(make_gwb, offer, say, keys, broker):
    path = make_gwb("8")
    one = offer(path, now=lambda: 1000.0)
    assert one.serial == 1000
    assert offer(path, now=lambda: 1000.0).serial == 1001
    assert offer(path, now=lambda: 5000.0).serial == 5000
    with pytest.raises(InputError, match="the last announcement has 5000"):
        offer(path, serial=5000)
    # a stranger cannot use the serials up
    say(encode(dataclasses.replace(one, serial=(1 << 53) - 1), Signer(keys.other)))
    assert offer(path, now=lambda: 6000.0).serial == 6000


def test_what_cannot_be_published(make_gwb, keys, broker, tmp_path, capsys, tools):
    url = "https://example.org/x.gwb"
    whole = make_gwb("8", for_device=False)
    with pytest.raises(InputError, match=r"holds cloud\.onnx, which devices refuse"):
        publish(whole, url, keys.key, Endpoint(broker.url))
    stranger = make_gwb("8", key=keys.other)
    args = ["--url", url, "--key", str(keys.key), "--broker", broker.url]
    assert main(["publish", str(stranger), *args]) == 2
    assert "is signed by key" in capsys.readouterr().err
    good = make_gwb("8")
    assert main(["publish", str(good), "--url", "http://x/y", *args[2:]]) == 2
    assert "must begin with https://" in capsys.readouterr().err
    with pytest.raises(LinkError):
        publish(good, url, keys.key, Endpoint("mqtt://127.0.0.1:1"))


def test_a_broker_that_drops_the_announcement_is_found_out(make_gwb, keys, tmp_path, tools):
    rules = tmp_path / "acl"
    rules.write_text("topic read gw/v1/#\n")
    broker = tools.Mosquitto(tmp_path, f"acl_file {rules}")
    try:
        with pytest.raises(LinkError, match="does not pass on"):
            publish(make_gwb("8"), "https://x/y", keys.key, Endpoint(broker.url), timeout=2.0)
    finally:
        broker.kill()


# -- bundles that are refused --------------------------------------------------------------


def test_a_bundle_that_fails_its_self_test_is_refused_for_good(
    run, make_bundle, tmp_path, keys, offer, until, server
):
    source = make_bundle("bad", version="8")
    arrays = read_arrays(source.read("sample.npz"))
    arrays["stage_0"] = arrays["stage_0"] + np.float32(1)
    path = tmp_path / "bad.gwb"
    resample(source, write_arrays(arrays))
    repack(source.path, path, sign=keys.key, for_device=True)
    device = run()
    said = offer(path)
    until(lambda: "refused" in device.steps, "the refusal")
    assert device.version == "7"
    assert device.device.answer(EASY).route == "edge"
    state = device.store.state()
    assert (state.current, state.serial) == (None, said.serial)
    assert [v.version for v in state.refused] == ["8"]
    assert list(device.store.bundles.iterdir()) == []
    device.close()
    again = run()
    until(lambda: again.updater.counters["known"] == 1, "the retained announcement")
    assert again.version == "7"
    assert len(server.asked) == 1


def resample(bundle, content):
    """Put another sample into a bundle's directory, with its right hash."""
    import hashlib

    (bundle.path / "sample.npz").write_bytes(content)
    document = json.loads((bundle.path / "manifest.json").read_text())
    document["files"]["sample.npz"] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    (bundle.path / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize("kind", ["stranger", "whole", "other version", "no bundle"])
def test_other_bundles_are_refused(
    run, make_gwb, announce, keys, server, say, until, tmp_path, kind
):
    path = make_gwb(
        "8",
        key=keys.other if kind == "stranger" else keys.key,
        for_device=kind != "whole",
    )
    device = run()
    changes = {"version": "9"} if kind == "other version" else {}
    if kind == "no bundle":
        good, path = path, tmp_path / "junk"
        path.write_bytes(b"junk")
        changes = {"size": 4, "sha256": __import__("hashlib").sha256(b"junk").hexdigest()}
        said = announce(good, server.put("/x", b"junk"), 5, **changes)
    else:
        said = announce(path, server.put("/x", path.read_bytes()), 5, **changes)
    say(encode(said, Signer(keys.key)))
    until(lambda: "refused" in device.steps, "the refusal")
    assert device.version == "7"
    assert device.updater.counters["failed"] == 1
    assert list(device.store.bundles.iterdir()) == list(device.store.partial.iterdir()) == []


def test_a_server_that_is_not_there_yet(run, make_gwb, announce, keys, server, say, until):
    path = make_gwb("8")
    device = run()
    say(encode(announce(path, server.url("/late.gwb"), 5), Signer(keys.key)))
    until(lambda: "retry" in device.steps, "the first try")
    assert device.version == "7"
    server.put("/late.gwb", path.read_bytes())
    until(lambda: device.version == "8", "version 8")


def test_a_newer_announcement_ends_waiting_for_an_older_one(
    run, make_gwb, announce, keys, server, say, offer, until
):
    device = run()
    say(encode(announce(make_gwb("8"), server.url("/never.gwb"), 5), Signer(keys.key)))
    until(lambda: "retry" in device.steps, "the first try")
    offer(make_gwb("9"))
    until(lambda: device.version == "9", "version 9")


# -- the first answers ---------------------------------------------------------------------


@pytest.fixture
def on_trial(run, make_gwb, offer, until):
    device = run()
    offer(make_gwb("8"))
    until(lambda: "done" in device.steps, "version 8")
    assert device.version == "8"
    return device


def late(answer):
    return dataclasses.replace(answer, latency_ms=5001.0)


def test_it_comes_back_by_itself_after_a_late_answer(on_trial, until, server, run):
    answer = on_trial.device.answer(EASY)
    # begun before the switch, as 5 s ago: another version's
    on_trial.updater.observe(late(answer))
    assert on_trial.store.state().trial
    on_trial.updater._trial._since -= 10.0
    on_trial.updater.observe(late(answer))
    until(lambda: on_trial.steps[-1] == "rolled-back", "the way back")
    assert on_trial.version == "7"
    assert on_trial.updater.counters["rolled_back"] == 1
    assert [v.version for v in on_trial.store.state().refused] == ["8"]
    on_trial.close()
    again = run()  # the announcement is still retained, and is not taken again
    until(lambda: again.updater.counters["known"] == 1, "the retained announcement")
    assert again.version == "7"
    assert len(server.asked) == 1


def test_it_comes_back_after_an_unexpected_error(on_trial, until, offer, make_gwb):
    on_trial.updater.observe(RuntimeError("no such kernel"))
    until(lambda: on_trial.steps[-1] == "rolled-back", "the way back")
    assert on_trial.version == "7"
    offer(make_gwb("9"))
    until(lambda: on_trial.version == "9", "the next version")


def test_sensors_are_no_fault_of_a_model(on_trial, until):
    for _ in range(2):
        on_trial.updater.observe(SensorError("a", "sensor a is dead"))
    on_trial.device.answer(EASY)
    until(lambda: "passed" in on_trial.steps, "the trial")
    assert on_trial.version == "8"
    on_trial.updater.observe(RuntimeError("long after"))
    assert not on_trial.store.state().trial


def test_a_version_that_answers_nothing_goes(on_trial, until):
    for _ in range(3):
        on_trial.updater.observe(SensorError("a", "sensor a is dead"))
    until(lambda: on_trial.steps[-1] == "rolled-back", "the way back")
    assert on_trial.version == "7"


def test_the_trial_goes_on_after_a_restart(on_trial, run, until):
    on_trial.device.answer(EASY)
    on_trial.close()
    again = run()
    assert again.version == "8"
    again.updater.observe(RuntimeError("no such kernel"))
    until(lambda: "rolled-back" in again.steps, "the way back")
    assert again.version == "7"


def test_the_first_bundle_needs_no_download(on_trial, first, offer, until, server):
    asked = len(server.asked)
    offer(shutil.copy(first, first.with_name("small-7.gwb")))
    until(lambda: on_trial.version == "7", "the first version")
    assert len(server.asked) == asked
