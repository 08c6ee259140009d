"""What is in deploy/ is parsed, and held against the code: no engine runs here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import PurePosixPath
from types import SimpleNamespace

import pytest
import yaml

from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_cloud.broker.broker_files import access_list, secure_config
from gatewise_cloud.broker.broker_init import init_broker
from gatewise_edge.link.topics import answers_topic
from gatewise_export.archive.true_figures import metrics_text, monitor
from tests.export.archive.archived_rows import FACTS, archived
from tests.export.archive.test_folder import NOW, folder
from tests.support import small_bundle
from tests.support.deploy_files import CONTAINER, DEPLOY, ROOT, check_command, read
from tests.support.mosquitto import SecureBroker
from tests.support.needs import find_program
from tests.support.ports import free_port

bundle = small_bundle.bundle


def test_every_yaml_file_parses():
    files = [p for p in DEPLOY.rglob("*") if p.suffix in (".yaml", ".yml")]
    assert len(files) > 10
    for path in files:
        assert read(path.relative_to(DEPLOY)), path


# -- mosquitto ---------------------------------------------------------------------------------


def test_the_example_is_what_the_command_writes():
    folder = PurePosixPath("/etc/mosquitto/gatewise")
    data = PurePosixPath("/var/lib/mosquitto")
    config = secure_config(folder, data=data, run_as="mosquitto")
    assert (DEPLOY / "mosquitto" / "mosquitto.conf").read_text() == config
    assert (DEPLOY / "mosquitto" / "acl").read_text() == access_list(["worker-1"], ["operator"])


def test_mosquitto_takes_the_example(tmp_path):
    """Every line of it is known to a real mosquitto; only places, port and user are others."""
    made = init_broker(tmp_path / "b", hosts=["127.0.0.1"], port=free_port())
    text = (DEPLOY / "mosquitto" / "mosquitto.conf").read_text()
    text = text.replace("/etc/mosquitto/gatewise", str(made.folder))
    text = text.replace("/var/lib/mosquitto", str(made.folder / "data"))
    text = text.replace("user mosquitto", "user root").replace("8883", str(made.roster.port))
    made.config.write_text(text)
    SecureBroker(made).close()


# -- systemd -----------------------------------------------------------------------------------


UNITS = sorted(p.name for p in DEPLOY.glob("*.service"))


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_units(unit):
    text = (DEPLOY / unit).read_text()
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    (start,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    program, *words = shlex.split(start)
    assert program.endswith("/gatewise")
    check_command([word for word in words if not word.startswith("$")])


@pytest.mark.parametrize(
    ("unit", "files"),
    [
        ("gatewise-edge.service", {"ca.crt", "device.crt", "device.key"}),
        ("gatewise-cloud@.service", {"ca.crt", "pool", "worker.crt", "worker.key"}),
    ],
)
def test_units_get_the_files_that_only_root_may_read(unit, files):
    """broker init writes keys with mode 0600; a unit's own user gets them as credentials."""
    text = (DEPLOY / unit).read_text()
    credentials = dict(re.findall(r"^LoadCredential=([\w.]+):/etc/gatewise/tls/(\S+)$", text, re.M))
    assert credentials.keys() == files
    assert set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/([\w.]+)", text)) == files
    start = text[text.index("ExecStart=") :]
    assert "/etc/gatewise/tls" not in start[: start.index("\nRestart")]


def test_the_example_of_an_environment_goes_on_over_its_lines():
    text = (DEPLOY / "gatewise-edge.service").read_text()
    lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    first = next(i for i, line in enumerate(lines) if line.startswith("GATEWISE_OPTIONS="))
    options = lines[first].partition("=")[2]
    while options.endswith("\\"):
        first += 1
        options = options[:-1] + lines[first]
    assert "--trust" in options
    check_command(["edge", "bundle.gwb", *shlex.split(options)])


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_units(unit, tmp_path):
    analyze = find_program("systemd-analyze", "apt install systemd")
    verified = tmp_path / unit
    verified.write_text(re.sub(r"(?<=ExecStart=)\S+", "/bin/true", (DEPLOY / unit).read_text()))
    done = subprocess.run([analyze, "verify", "--man=no", verified], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if unit in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


# -- containers --------------------------------------------------------------------------------


def test_compose(tmp_path):
    (compose,) = read("compose.yaml")
    services = compose["services"]
    assert set(services) == {"broker", "worker", "prometheus", "grafana"}
    made = init_broker(tmp_path / "broker", hosts=["broker"], **CONTAINER)
    inside = {}
    for name, service in services.items():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            inside[target] = source
            if source.startswith("./broker"):
                assert (made.folder.parent / source).exists(), f"{name}: nothing makes {source}"
            elif source.startswith("./") and source != "./bundles":
                assert (DEPLOY / source).exists(), f"{name}: {source} is missing"
            elif not source.startswith("./"):
                assert source in compose["volumes"]
        for needed in service.get("depends_on", []):
            assert needed in services
    # What mosquitto is told to read is there, and no secret that it does not need.
    for path in re.findall(r"^\w+ (/mosquitto/\S+)$", made.config.read_text(), re.M):
        assert path.rstrip("/") in inside
    assert not any(source.endswith(("ca.key", "/broker")) for source in inside.values())
    command = services["worker"]["command"]
    check_command(command)
    for flag in ("--ca-file", "--cert-file", "--key-file", "--pool-file", "--watch"):
        assert command[command.index(flag) + 1] in inside
    port = command[command.index("--metrics-port") + 1]
    (prometheus,) = read("prometheus/prometheus.yml")
    (names,) = prometheus["scrape_configs"][0]["dns_sd_configs"]
    assert (names["names"], str(names["port"])) == (["worker"], port)


def test_compose_with_its_own_parser():
    docker = find_program("docker", "with its compose plugin")
    if subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose plugin here")
    subprocess.run(
        [docker, "compose", "-f", DEPLOY / "compose.yaml", "config", "--quiet"],
        check=True,
        env={"GRAFANA_PASSWORD": "x", "PATH": "/usr/bin:/bin:/usr/local/bin"},
    )


def test_dockerfile():
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    words = [step[0] for step in steps]
    assert words[0] == "FROM"
    assert set(words) <= {
        "FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENV", "HEALTHCHECK", "ENTRYPOINT",
        "CMD",
    }  # fmt: skip
    # The last stage does not run as root.
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "FROM")
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            assert (ROOT / rest.split()[0]).exists()
    # The context holds what the wheel is made of, and no keys.
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = {"!" + path.split("/")[0] for path in build["targets"]["wheel"]["packages"]}
    files = {"!pyproject.toml", "!constraints.txt", "!README.md", "!LICENSE"}
    assert {line for line in kept if line.startswith("!")} == packages | files
    assert "*" in kept
    arguments = dict(steps)
    assert json.loads(arguments["ENTRYPOINT"]) == ["gatewise"]
    check = json.loads(arguments["HEALTHCHECK"].partition("CMD")[2])
    compile(check[-1], "healthcheck", "exec")


# -- Telegraf ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_telegraf_finds_what_a_device_publishes(bundle):
    """Telegraf's JSON parser drops texts that are neither tags nor named as fields."""
    conf = tomllib.loads((DEPLOY / "telegraf" / "telegraf.conf").read_text())
    (consumer,) = conf["inputs"]["mqtt_consumer"]
    (parsing,) = consumer["topic_parsing"]
    assert consumer["topics"] == [parsing["topic"]] == [answers_topic("pi-1").replace("pi-1", "+")]
    levels = zip(answers_topic("pi-1").split("/"), parsing["tags"].split("/"), strict=True)
    assert {name: level for level, name in levels if name != "_"} == {"device": "pi-1"}
    done = subprocess.run(
        [sys.executable, "-m", "gatewise", "edge", bundle.path, "--device", "pi-1"],
        input="[1, 0, 0, 0, 0, 0]\n",
        capture_output=True,
        text=True,
        check=True,
    )
    line = json.loads(done.stdout.splitlines()[0])
    texts = {key for key, value in line.items() if isinstance(value, str)}
    assert texts == {*consumer["tag_keys"], *consumer["json_string_fields"]}


# -- metrics -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exposed(tmp_path_factory):
    """Names that a worker, a device and the estimate of the truth really expose."""
    from gatewise_cloud.service.metrics import text_of
    from gatewise_cloud.worker.worker import Worker
    from gatewise_edge.device.device import Device
    from gatewise_edge.service.edge_metrics import EdgeMetrics

    path = small_bundle.write_bundle(tmp_path_factory.mktemp("metrics") / "bundle").path
    with MosquittoBroker() as broker, Worker(path, broker.url) as worker, Device(path) as device:
        updater = SimpleNamespace(counters={"taken": 0})
        text = text_of(worker) + EdgeMetrics(device, updater=updater).text()
    folder(path.parent / "kept").add(archived(20), FACTS, NOW)
    text += metrics_text(monitor(path.parent / "kept")).encode()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text.decode(), re.M):
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + end for end in ends}
    return names


def dashboard():
    return json.loads((DEPLOY / "grafana" / "dashboards" / "gatewise.json").read_text())


def expressions():
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for group in read("prometheus/alerts.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    (scaled,) = read("kubernetes/keda/scaledobject.yaml")
    for trigger in scaled["spec"]["triggers"]:
        yield trigger["metadata"]["query"]
    (scaler,) = read("kubernetes/hpa/hpa.yaml")
    for metric in scaler["spec"]["metrics"]:
        if metric["type"] == "Pods":
            yield metric["pods"]["metric"]["name"]


def test_every_metric_that_is_used_exists(exposed):
    used = {name for e in expressions() for name in re.findall(r"gatewise_\w+", e)}
    assert len(used) > 20
    assert used <= exposed, used - exposed


def test_the_dashboard():
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells
        if panel["type"] != "row":
            references = [target["refId"] for target in panel["targets"]]
            assert references
            assert len(set(references)) == len(references)
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"]
    uids = {target["datasource"]["uid"] for p in panels for target in p.get("targets", [])}
    assert uids == {source["uid"]}
    (provider,) = read("grafana/provisioning/dashboards/gatewise.yaml")[0]["providers"]
    volumes = read("compose.yaml")[0]["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in volumes


def test_prometheus_takes_its_files(tmp_path):
    tool = find_program("promtool", "apt install prometheus")
    done = subprocess.run(
        [tool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # It parses what the panels ask, too, once Grafana's own variable has a value.
    rules = [
        {"record": f"panel:{i}", "expr": e.replace("$__rate_interval", "1m")}
        for i, e in enumerate(expressions())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([tool, "check", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should():
    tool = find_program("promtool", "apt install prometheus")
    tests = DEPLOY / "prometheus" / "alerts_test.yml"
    done = subprocess.run([tool, "test", "rules", tests], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (rules,) = read("prometheus/alerts_test.yml")
    tested = {case["alertname"] for test in rules["tests"] for case in test["alert_rule_test"]}
    assert len(tested) >= 7


# -- the README --------------------------------------------------------------------------------


def test_the_commands_of_the_readme():
    lines = re.findall(r"^    (?:sudo )?gatewise (.*)$", (DEPLOY / "README.md").read_text(), re.M)
    assert len(lines) >= 4
    for line in lines:
        check_command(shlex.split(line))
