"""Tests of the manifests in deploy/kubernetes against each other and against the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gatewise_cloud.broker.broker_init import init_broker
from tests.support.deploy_files import CONTAINER_SETTINGS, DEPLOY, check_command, read_documents
from tests.support.needs import find_program

KUBERNETES = DEPLOY / "kubernetes"


def manifests():
    return [
        document
        for path in sorted(KUBERNETES.rglob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in read_documents(path.relative_to(DEPLOY))
    ]


def manifests_of_kind(*kinds):
    return [d for d in manifests() if d["kind"] in kinds]


def test_every_file_is_in_a_kustomization():
    for path in KUBERNETES.rglob("kustomization.yaml"):
        (kustomization,) = read_documents(path.relative_to(DEPLOY))
        files = {p.name for p in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        listed_resources = kustomization["resources"]
        assert files == {r for r in listed_resources if r.endswith(".yaml")}
        assert all((path.parent / r).exists() for r in listed_resources)
        assert kustomization["namespace"] == "gatewise"


@pytest.mark.parametrize("overlay", ["base", "keda", "hpa"])
def test_kustomize_builds_the_manifests(overlay):
    kubectl = find_program("kubectl", "a binary of kubernetes.io")
    command = [kubectl, "kustomize", KUBERNETES / overlay]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    built_manifests = list(yaml.safe_load_all(process.stdout))
    assert {"Namespace", "Deployment", "StatefulSet", "NetworkPolicy"} <= {
        d["kind"] for d in built_manifests
    }
    for document in built_manifests:
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "gatewise"


def test_only_the_autoscaler_sets_replicas_and_images_have_digests():
    (deployment,) = manifests_of_kind("Deployment")
    assert "replicas" not in deployment["spec"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["topologySpreadConstraints"]
    for name in ("base", "fill"):
        (kustomization,) = read_documents(f"kubernetes/{name}/kustomization.yaml")
        (image,) = kustomization["images"]
        assert image["name"] == pod["containers"][0]["image"] == "gatewise"
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"])
    (claim,) = manifests_of_kind("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("overlay", ["base", "keda", "hpa", "fill"])
def test_manifests_match_the_schemas_of_kubernetes(overlay):
    kubectl = find_program("kubectl", "a binary of kubernetes.io")
    kubeconform = find_program("kubeconform", "a binary of github.com/yannh/kubeconform")
    built_manifests = subprocess.run(
        [kubectl, "kustomize", KUBERNETES / overlay], capture_output=True, check=True
    )
    schema_check = subprocess.run(
        [kubeconform, "-strict", "-ignore-missing-schemas"],
        input=built_manifests.stdout,
        capture_output=True,
    )
    assert schema_check.returncode == 0, schema_check.stdout


def test_manifests_are_consistent():
    for document in manifests():
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        assert re.fullmatch(r"[a-z0-9-]+", document["metadata"]["name"])
    workloads = {d["metadata"]["name"]: d for d in manifests_of_kind("Deployment", "StatefulSet")}
    ports = {}
    readme = (DEPLOY / "README.md").read_text()
    claims = {d["metadata"]["name"] for d in manifests_of_kind("PersistentVolumeClaim")}
    config_maps = {d["metadata"]["name"]: d for d in manifests_of_kind("ConfigMap")}
    for name, workload in workloads.items():
        template = workload["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        volumes = {v["name"]: v for v in pod["volumes"]}
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            volumes[claim["metadata"]["name"]] = claim
        for volume in volumes.values():
            if "secret" in volume:
                secret = volume["secret"]["secretName"]
                assert f"create secret generic {secret} " in readme
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        for container in pod["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} <= set(volumes)
            assert "limits" in container["resources"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            ports_by_name = {p["name"]: p["containerPort"] for p in container["ports"]}
            ports[name] = ports_by_name
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    (handler,) = [v for v in container[probe].values() if isinstance(v, dict)]
                    assert handler["port"] in ports_by_name
            for source in container.get("envFrom", []):
                variables = config_maps[source["configMapRef"]["name"]]["data"]
                for variable in re.findall(r"\$\((\w+)\)", " ".join(container["args"])):
                    assert variable in variables
    for service in manifests_of_kind("Service"):
        (target,) = [
            name
            for name, w in workloads.items()
            if service["spec"]["selector"].items()
            <= w["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert all(p["targetPort"] in ports[target] for p in service["spec"]["ports"])
    for scaler in manifests_of_kind("HorizontalPodAutoscaler", "ScaledObject"):
        assert scaler["spec"]["scaleTargetRef"]["name"] in workloads
    allowed_ports = {
        port["port"]
        for policy in manifests_of_kind("NetworkPolicy")
        for rule in policy["spec"].get("ingress", [])
        for port in rule["ports"]
    }
    assert allowed_ports == {
        number for ports_by_name in ports.values() for number in ports_by_name.values()
    }


def test_worker_command_has_valid_options():
    (deployment,) = manifests_of_kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    check_command(container["args"])


def test_broker_secret_contains_the_files_of_the_configuration(tmp_path):
    """The secret in the README contains exactly the files that mosquitto.conf names."""
    broker_folder = init_broker(tmp_path, hosts=["b"], **CONTAINER_SETTINGS)
    readme = (DEPLOY / "README.md").read_text()
    (line,) = re.findall(r".*create secret generic gatewise-broker .*", readme)
    secret_files = {Path(p).name for p in re.findall(r"--from-file=(\S+)", line)}
    config_paths = re.findall(
        r"^\w+ (/mosquitto/config/\S+)$", broker_folder.config.read_text(), re.M
    )
    assert {Path(path).name for path in config_paths} | {"mosquitto.conf"} == secret_files
