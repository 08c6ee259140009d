"""Tests of the files in deploy/ against the code, without running containers."""

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
from gatewise_export.archive import true_figures
from tests.export.archive.archived_rows import FACTS, make_archived_rows
from tests.export.archive.test_folder import NOW, open_folder
from tests.support import small_bundle
from tests.support.deploy_files import (
    CONTAINER_SETTINGS,
    DEPLOY,
    ROOT,
    check_command,
    read_documents,
)
from tests.support.mosquitto import SecureBroker
from tests.support.needs import find_program
from tests.support.ports import free_port

bundle = small_bundle.bundle  # fixture


def test_yaml_files_can_be_parsed():
    paths = [path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".yml")]
    assert len(paths) > 10  # the files were found
    for path in paths:
        assert read_documents(path.relative_to(DEPLOY)), path


# -- mosquitto ---------------------------------------------------------------------------------


def test_mosquitto_files_equal_the_output_of_broker_init():
    folder = PurePosixPath("/etc/mosquitto/gatewise")
    data_folder = PurePosixPath("/var/lib/mosquitto")
    config = secure_config(folder, data_folder=data_folder, run_as="mosquitto")
    assert (DEPLOY / "mosquitto" / "mosquitto.conf").read_text() == config
    assert (DEPLOY / "mosquitto" / "acl").read_text() == access_list(["worker-1"], ["operator"])


def test_mosquitto_accepts_the_configuration(tmp_path):
    """A real mosquitto starts with the file after its paths, port and user are replaced."""
    broker_folder = init_broker(tmp_path / "b", hosts=["127.0.0.1"], port=free_port())
    config = (DEPLOY / "mosquitto" / "mosquitto.conf").read_text()
    for deployed_text, test_text in (
        ("/etc/mosquitto/gatewise", str(broker_folder.folder)),
        ("/var/lib/mosquitto", str(broker_folder.folder / "data")),
        ("user mosquitto", "user root"),
        ("8883", str(broker_folder.roster.port)),
    ):
        config = config.replace(deployed_text, test_text)
    broker_folder.config.write_text(config)
    SecureBroker(broker_folder).close()


# -- systemd -----------------------------------------------------------------------------------


UNIT_FILES = sorted(path.name for path in DEPLOY.glob("*.service"))


@pytest.mark.parametrize("unit", UNIT_FILES)
def test_systemd_units_run_valid_commands(unit):
    unit_text = (DEPLOY / unit).read_text()
    lines = re.sub(r"\\\n\s*", "", unit_text).splitlines()
    (start_command,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    program, *command_words = shlex.split(start_command)
    assert program.endswith("/gatewise")
    check_command([word for word in command_words if not word.startswith("$")])


@pytest.mark.parametrize(
    ("unit", "files"),
    [
        ("gatewise-edge.service", {"ca.crt", "device.crt", "device.key"}),
        ("gatewise-cloud@.service", {"ca.crt", "pool", "worker.crt", "worker.key"}),
    ],
)
def test_units_get_key_files_as_credentials(unit, files):
    """The user of a unit gets the keys, which only root may read, as credentials."""
    unit_text = (DEPLOY / unit).read_text()
    credentials = dict(
        re.findall(r"^LoadCredential=([\w.]+):/etc/gatewise/tls/(\S+)$", unit_text, re.M)
    )
    assert credentials.keys() == files
    assert set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/([\w.]+)", unit_text)) == files
    start_lines = unit_text[unit_text.index("ExecStart=") :]
    assert "/etc/gatewise/tls" not in start_lines[: start_lines.index("\nRestart")]


def test_units_on_one_machine_have_different_ports():
    ports = {
        unit: re.findall(r"--metrics-port (\S+)", (DEPLOY / unit).read_text())
        for unit in UNIT_FILES
    }
    (device_port,) = ports["gatewise-edge.service"]
    (worker_port,) = ports["gatewise-cloud@.service"]
    assert device_port not in [worker_port.replace("%i", str(number)) for number in range(10)]


def test_example_of_an_environment_is_a_valid_command():
    unit_lines = (DEPLOY / "gatewise-edge.service").read_text().splitlines()
    comments = [line.removeprefix("#").strip() for line in unit_lines if line.startswith("#")]
    index = next(
        index for index, line in enumerate(comments) if line.startswith("GATEWISE_OPTIONS=")
    )
    options = comments[index].partition("=")[2]
    while options.endswith("\\"):  # the next line continues it
        index += 1
        options = options[:-1] + comments[index]
    assert "--trust" in options
    check_command(["edge", "bundle.gwb", *shlex.split(options)])


@pytest.mark.parametrize("unit", UNIT_FILES)
def test_systemd_accepts_the_units(unit, tmp_path):
    systemd_analyze = find_program("systemd-analyze", "apt install systemd")
    unit_copy = tmp_path / unit
    unit_copy.write_text(re.sub(r"(?<=ExecStart=)\S+", "/bin/true", (DEPLOY / unit).read_text()))
    command = [systemd_analyze, "verify", "--man=no", unit_copy]
    process = subprocess.run(command, capture_output=True, text=True)
    complaints = [line for line in process.stderr.splitlines() if unit in line]
    assert (process.returncode, complaints) == (0, []), process.stderr


# -- containers --------------------------------------------------------------------------------


def test_compose_services_use_existing_files_and_options(tmp_path):
    (compose,) = read_documents("compose.yaml")
    services = compose["services"]
    assert set(services) == {"broker", "worker", "prometheus", "grafana"}
    broker_folder = init_broker(tmp_path / "broker", hosts=["broker"], **CONTAINER_SETTINGS)
    source_of_path = {}
    for name, service in services.items():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            source_of_path[target] = source
            if source.startswith("./broker"):
                assert (broker_folder.folder.parent / source).exists(), (
                    f"{name}: {source} does not exist"
                )
            elif source.startswith("./") and source != "./bundles":
                assert (DEPLOY / source).exists(), f"{name}: {source} is missing"
            elif not source.startswith("./"):
                assert source in compose["volumes"]
        for needed_service in service.get("depends_on", []):
            assert needed_service in services
    # The container has the files that mosquitto reads, and no other secrets.
    for path in re.findall(r"^\w+ (/mosquitto/\S+)$", broker_folder.config.read_text(), re.M):
        assert path.rstrip("/") in source_of_path
    sources = source_of_path.values()
    assert not any(source.endswith(("ca.key", "/broker")) for source in sources)
    command = services["worker"]["command"]
    check_command(command)
    for option in ("--ca-file", "--cert-file", "--key-file", "--pool-file", "--watch"):
        assert command[command.index(option) + 1] in source_of_path
    port = command[command.index("--metrics-port") + 1]
    (prometheus,) = read_documents("prometheus/prometheus.yml")
    (name_lookup,) = prometheus["scrape_configs"][0]["dns_sd_configs"]
    assert (name_lookup["names"], str(name_lookup["port"])) == (["worker"], port)


def test_docker_compose_accepts_the_file():
    docker = find_program("docker", "with its compose plugin")
    if subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose plugin")
    subprocess.run(
        [docker, "compose", "-f", DEPLOY / "compose.yaml", "config", "--quiet"],
        check=True,
        env={"GRAFANA_PASSWORD": "x", "PATH": "/usr/bin:/bin:/usr/local/bin"},
    )


def test_dockerfile_copies_existing_files_and_runs_without_root():
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    instruction_names = [name for name, _ in instructions]
    assert instruction_names[0] == "FROM"
    assert set(instruction_names) <= {
        "FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENV", "HEALTHCHECK", "ENTRYPOINT",
        "CMD",
    }  # fmt: skip
    # The last stage does not run as root.
    assert instruction_names.index("USER") > max(
        index for index, name in enumerate(instruction_names) if name == "FROM"
    )
    for name, arguments in instructions:
        if name == "COPY" and not arguments.startswith("--from"):
            assert (ROOT / arguments.split()[0]).exists()
    # The build context contains only the sources of the wheel, and no keys.
    ignore_lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = {"!" + path.split("/")[0] for path in build["targets"]["wheel"]["packages"]}
    other_files = {"!pyproject.toml", "!constraints.txt", "!README.md", "!LICENSE"}
    assert {line for line in ignore_lines if line.startswith("!")} == packages | other_files
    assert "*" in ignore_lines
    arguments_by_name = dict(instructions)
    assert json.loads(arguments_by_name["ENTRYPOINT"]) == ["gatewise"]
    health_command = json.loads(arguments_by_name["HEALTHCHECK"].partition("CMD")[2])
    compile(health_command[-1], "healthcheck", "exec")


# -- Telegraf ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_telegraf_reads_all_texts_that_a_device_publishes(bundle):
    """Telegraf's JSON parser drops strings that are neither tags nor listed as fields."""
    configuration = tomllib.loads((DEPLOY / "telegraf" / "telegraf.conf").read_text())
    (consumer,) = configuration["inputs"]["mqtt_consumer"]
    (parsing,) = consumer["topic_parsing"]
    assert consumer["topics"] == [parsing["topic"]] == [answers_topic("pi-1").replace("pi-1", "+")]
    levels = zip(answers_topic("pi-1").split("/"), parsing["tags"].split("/"), strict=True)
    assert {name: level for level, name in levels if name != "_"} == {"device": "pi-1"}
    process = subprocess.run(
        [sys.executable, "-m", "gatewise", "edge", bundle.path, "--device", "pi-1"],
        input="[1, 0, 0, 0, 0, 0]\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answer_line = json.loads(process.stdout.splitlines()[0])
    text_keys = {key for key, value in answer_line.items() if isinstance(value, str)}
    assert text_keys == {*consumer["tag_keys"], *consumer["json_string_fields"]}


# -- metrics -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exposed_metrics(tmp_path_factory):
    """Names of the metrics of a worker, a device and `gatewise monitor`."""
    from gatewise_cloud.service.metrics import metrics_text
    from gatewise_cloud.worker.worker import Worker
    from gatewise_edge.device.device import Device
    from gatewise_edge.service.edge_metrics import EdgeMetrics

    path = small_bundle.write_bundle(tmp_path_factory.mktemp("metrics") / "bundle").path
    archive_folder = path.parent / "archive"
    with (
        MosquittoBroker() as broker,
        Worker(path, broker.url, keep=archive_folder) as worker,
        Device(path) as device,
    ):
        updater = SimpleNamespace(counters={"adopted": 0})
        exposition = metrics_text(worker) + EdgeMetrics(device, updater=updater).text()
    open_folder(archive_folder).add(make_archived_rows(20), FACTS, NOW)
    exposition += true_figures.metrics_text(true_figures.monitor(archive_folder)).encode()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", exposition.decode(), re.M):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + suffix for suffix in suffixes}
    return names


def read_dashboard():
    """Read the document of the Grafana dashboard."""
    return json.loads((DEPLOY / "grafana" / "dashboards" / "gatewise.json").read_text())


def iterate_expressions():
    """Yield the queries of panels, alerts and autoscalers."""
    for panel in read_dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for group in read_documents("prometheus/alerts.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    (scaled_object,) = read_documents("kubernetes/keda/scaledobject.yaml")
    for trigger in scaled_object["spec"]["triggers"]:
        yield trigger["metadata"]["query"]
    (scaler,) = read_documents("kubernetes/hpa/hpa.yaml")
    for metric in scaler["spec"]["metrics"]:
        if metric["type"] == "Pods":
            yield metric["pods"]["metric"]["name"]


def test_dashboards_and_alerts_use_existing_metrics(exposed_metrics):
    used_metrics = {
        name
        for expression in iterate_expressions()
        for name in re.findall(r"gatewise_\w+", expression)
    }
    assert len(used_metrics) > 20  # the expressions were found
    assert used_metrics <= exposed_metrics, used_metrics - exposed_metrics


def test_dashboard_panels_do_not_overlap_and_have_data():
    grafana_dashboard = read_dashboard()
    panels = grafana_dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    occupied_cells = set()
    for panel in panels:
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24  # columns of Grafana's grid
        cells = {
            (column, row)
            for column in range(position["x"], position["x"] + position["w"])
            for row in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & occupied_cells, f"{panel['title']} overlaps another panel"
        occupied_cells |= cells
        if panel["type"] != "row":
            references = [target["refId"] for target in panel["targets"]]
            assert references
            assert len(set(references)) == len(references)
    (data_source,) = read_documents("grafana/provisioning/datasources/prometheus.yaml")[0][
        "datasources"
    ]
    source_ids = {
        target["datasource"]["uid"] for panel in panels for target in panel.get("targets", [])
    }
    assert source_ids == {data_source["uid"]}
    (provider,) = read_documents("grafana/provisioning/dashboards/gatewise.yaml")[0]["providers"]
    volumes = read_documents("compose.yaml")[0]["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in volumes


def test_prometheus_accepts_its_files_and_the_panels(tmp_path):
    promtool = find_program("promtool", "apt install prometheus")
    process = subprocess.run(
        [promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml"],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    # promtool also checks the expressions of the panels, with a value for Grafana's variable.
    rules = [
        {"record": f"panel:{index}", "expr": expression.replace("$__rate_interval", "1m")}
        for index, expression in enumerate(iterate_expressions())
    ]
    rules_path = tmp_path / "panels.yml"
    rules_path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    process = subprocess.run(
        [promtool, "check", "rules", rules_path], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_alerts_pass_their_tests():
    promtool = find_program("promtool", "apt install prometheus")
    tests_path = DEPLOY / "prometheus" / "alerts_test.yml"
    process = subprocess.run(
        [promtool, "test", "rules", tests_path], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (rules,) = read_documents("prometheus/alerts_test.yml")
    tested_alerts = {
        case["alertname"] for test in rules["tests"] for case in test["alert_rule_test"]
    }
    assert len(tested_alerts) >= 7  # the number when this test was written


# -- the README --------------------------------------------------------------------------------


def test_commands_of_the_readme_have_valid_options():
    lines = re.findall(r"^    (?:sudo )?gatewise (.*)$", (DEPLOY / "README.md").read_text(), re.M)
    assert len(lines) >= 4  # the commands were found
    for line in lines:
        check_command(shlex.split(line))
