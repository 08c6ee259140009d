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


def read_manifests():
    """Read all manifests."""
    return [
        document
        for path in sorted(KUBERNETES.rglob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in read_documents(path.relative_to(DEPLOY))
    ]


def find_manifests(*kinds):
    """Find the manifests of the given kinds."""
    return [manifest for manifest in read_manifests() if manifest["kind"] in kinds]


def test_every_file_is_in_a_kustomization():
    for path in KUBERNETES.rglob("kustomization.yaml"):
        (kustomization,) = read_documents(path.relative_to(DEPLOY))
        file_names = {file.name for file in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        resources = kustomization["resources"]
        assert file_names == {resource for resource in resources if resource.endswith(".yaml")}
        assert all((path.parent / resource).exists() for resource in resources)
        assert kustomization["namespace"] == "gatewise"


# `fill` is a single pod, which is applied alone
@pytest.mark.parametrize("overlay", ["base", "keda", "hpa"])
def test_kustomize_builds_the_manifests(overlay):
    kubectl = find_program("kubectl", "a binary of kubernetes.io")
    command = [kubectl, "kustomize", KUBERNETES / overlay]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    built_manifests = list(yaml.safe_load_all(process.stdout))
    assert {"Namespace", "Deployment", "StatefulSet", "NetworkPolicy"} <= {
        manifest["kind"] for manifest in built_manifests
    }
    for manifest in built_manifests:
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "gatewise"


def test_only_the_autoscaler_sets_replicas_of_the_spread_workers():
    (deployment,) = find_manifests("Deployment")
    assert "replicas" not in deployment["spec"]
    assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]


@pytest.mark.parametrize("overlay", ["base", "fill"])  # the others take the image of base
def test_images_have_digests(overlay):
    (deployment,) = find_manifests("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (kustomization,) = read_documents(f"kubernetes/{overlay}/kustomization.yaml")
    (image,) = kustomization["images"]
    assert image["name"] == container["image"] == "gatewise"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"])


def test_pods_on_several_nodes_can_mount_the_claim():
    (claim,) = find_manifests("PersistentVolumeClaim")
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


def find_workloads():
    """Find the deployments and stateful sets by name."""
    workloads = find_manifests("Deployment", "StatefulSet")
    return {workload["metadata"]["name"]: workload for workload in workloads}


def find_names(kind):
    """Find the names of the manifests of a kind."""
    return {manifest["metadata"]["name"] for manifest in find_manifests(kind)}


def read_ports(container):
    """Read the ports of a container by name."""
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def read_workload_ports(workload):
    """Read the ports of the only container of a workload, by name."""
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return read_ports(container)


@pytest.fixture(params=find_workloads())
def workload(request):
    """Each deployment and stateful set."""
    return find_workloads()[request.param]


@pytest.fixture
def volumes(workload):
    """Volumes of a workload by name, including those of its claims."""
    claims = workload["spec"].get("volumeClaimTemplates", [])
    volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
    return volumes | {claim["metadata"]["name"]: claim for claim in claims}


@pytest.fixture
def containers(workload):
    """Containers of a workload."""
    return workload["spec"]["template"]["spec"]["containers"]


def test_manifests_have_a_version_a_kind_and_a_valid_name():
    for manifest in read_manifests():
        assert {"apiVersion", "kind", "metadata"} <= set(manifest)
        assert re.fullmatch(r"[a-z0-9-]+", manifest["metadata"]["name"])


def test_selectors_match_the_labels_of_their_pods(workload):
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_pods_run_without_privileges_and_within_limits(workload, containers):
    assert workload["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]
    for container in containers:
        assert "limits" in container["resources"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_the_readme_creates_the_secrets_of_volumes(volumes):
    readme = (DEPLOY / "README.md").read_text()
    secrets = [volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume]
    assert all(f"create secret generic {secret} " in readme for secret in secrets)


def test_volumes_and_their_claims_exist(volumes, containers):
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            claim_name = volume["persistentVolumeClaim"]["claimName"]
            assert claim_name in find_names("PersistentVolumeClaim")
    for container in containers:
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)


def test_probes_use_ports_of_their_container(containers):
    for container in containers:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                (handler,) = [
                    entry for entry in container[probe].values() if isinstance(entry, dict)
                ]
                assert handler["port"] in read_ports(container)


def test_workers_do_not_restart_before_they_have_a_bundle():
    """A worker without a bundle listens, and its page /healthz has the status 503."""
    (deployment,) = find_manifests("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "httpGet" in container["readinessProbe"]
    assert "tcpSocket" in container["startupProbe"]
    assert "tcpSocket" in container["livenessProbe"]


def test_variables_in_arguments_are_in_the_config_map(containers):
    config_maps = {
        config_map["metadata"]["name"]: config_map for config_map in find_manifests("ConfigMap")
    }
    for container in containers:
        for source in container.get("envFrom", []):
            variables = config_maps[source["configMapRef"]["name"]]["data"]
            for variable in re.findall(r"\$\((\w+)\)", " ".join(container["args"])):
                assert variable in variables


def test_services_select_one_workload_and_its_ports():
    for service in find_manifests("Service"):
        (target,) = [
            workload
            for workload in find_workloads().values()
            if service["spec"]["selector"].items()
            <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]
        ports = read_workload_ports(target)
        assert all(port["targetPort"] in ports for port in service["spec"]["ports"])


def test_autoscalers_scale_a_workload():
    for scaler in find_manifests("HorizontalPodAutoscaler", "ScaledObject"):
        assert scaler["spec"]["scaleTargetRef"]["name"] in find_workloads()


def test_network_policies_allow_exactly_the_ports_of_containers():
    """A port without a policy would be unreachable, and a further port would be open needlessly."""
    allowed_ports = {
        port["port"]
        for policy in find_manifests("NetworkPolicy")
        for rule in policy["spec"].get("ingress", [])
        for port in rule["ports"]
    }
    workloads = find_workloads().values()
    assert allowed_ports == {
        number for workload in workloads for number in read_workload_ports(workload).values()
    }


def test_worker_command_has_valid_options():
    (deployment,) = find_manifests("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    check_command(container["args"])


def test_broker_secret_contains_the_files_of_the_configuration(tmp_path):
    """The secret in the README contains exactly the files that mosquitto.conf names."""
    broker_folder = init_broker(tmp_path, hosts=["b"], **CONTAINER_SETTINGS)
    readme = (DEPLOY / "README.md").read_text()
    (line,) = re.findall(r".*create secret generic gatewise-broker .*", readme)
    secret_files = {Path(file).name for file in re.findall(r"--from-file=(\S+)", line)}
    config_paths = re.findall(
        r"^\w+ (/mosquitto/config/\S+)$", broker_folder.config.read_text(), re.M
    )
    assert {Path(path).name for path in config_paths} | {"mosquitto.conf"} == secret_files
