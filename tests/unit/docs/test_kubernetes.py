"""The manifests of deploy/kubernetes agree with the schemas of Kubernetes, the settings, exit codes and metrics."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from streams_app.health.http import ALWAYS_SERVED
from streams_app.settings import Settings
from tests.unit.docs.promql import unknown_labels

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
OLDEST, NEWEST = "1.31", "1.37"

TEXT = {"type": "string", "minLength": 1}
NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "pattern": r"^[a-z0-9-]{1,63}$"}}}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """Forbid other properties in an object's schema, because the API server prunes or rejects unknown ones."""
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


def resource(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return closed(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=NAMED,
        spec=spec,
    )


DURATION = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))+$"}
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
CUSTOM = {
    "ServiceMonitor": resource(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        closed(
            ["selector", "endpoints"],
            selector=closed([], matchLabels=LABELS),
            endpoints={
                "type": "array",
                "minItems": 1,
                "items": closed(["port"], port=TEXT, path={"pattern": "^/"}, interval=DURATION, scrapeTimeout=DURATION),
            },
        ),
    ),
    "ScaledObject": resource(
        "keda.sh/v1alpha1",
        "ScaledObject",
        closed(
            ["scaleTargetRef", "triggers"],
            scaleTargetRef=closed(["name"], apiVersion=TEXT, kind=TEXT, name=TEXT),
            pollingInterval={"type": "integer", "minimum": 1},
            cooldownPeriod={"type": "integer", "minimum": 0},
            minReplicaCount={"type": "integer", "minimum": 0},
            maxReplicaCount={"type": "integer", "minimum": 1},
            fallback=closed(["failureThreshold", "replicas"], failureThreshold={"type": "integer"}, replicas={"type": "integer"}),
            # The behavior is compared with the schema of Kubernetes.
            advanced=closed([], horizontalPodAutoscalerConfig=closed([], behavior={"type": "object"})),
            triggers={
                "type": "array",
                "minItems": 1,
                "items": closed(
                    ["type", "metadata"],
                    type={"const": "prometheus"},
                    metricType={"const": "AverageValue"},  # the one with which a fallback is possible
                    metadata={
                        "type": "object",
                        "required": ["serverAddress", "query", "threshold"],
                        "additionalProperties": {"type": "string"},  # a number without quotes is rejected
                    },
                ),
            },
        ),
    ),
}
"""Kind → what the documentation of its custom resource requires of the fields that the manifests use."""


def documents() -> list[dict[str, Any]]:
    return [found for path in sorted(FOLDER.glob("*.yaml")) for found in yaml.safe_load_all(path.read_text("utf-8"))]


CONSOLE = "streams-app-console"


def one(kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the manifest of a kind with a name; without, the one that is not the console's."""
    every = [document for document in documents() if document["kind"] == kind]
    [found] = [one for one in every if (one["metadata"]["name"] == name if name else one["metadata"]["name"] != CONSOLE)]
    return found


def pod(kind: str, name: str | None = None) -> dict[str, Any]:
    return one(kind, name)["spec"]["template"]["spec"]


def container(kind: str, name: str | None = None) -> dict[str, Any]:
    [found] = pod(kind, name)["containers"]
    return found


def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "streams.toml"
    path.write_text(one("ConfigMap")["data"]["streams.toml"], "utf-8")
    return Settings.load(path, {})


def check(document: dict[str, Any], version: str) -> None:
    if document["kind"] in CUSTOM:
        jsonschema.validate(document, CUSTOM[document["kind"]])
    else:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("document", documents(), ids=lambda found: found["kind"])
def test_manifest_has_exactly_the_fields_of_its_schema(document: dict[str, Any], version: str) -> None:
    check(document, version)


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "Job", "ServiceMonitor", "ScaledObject"])
def test_manifest_with_an_unknown_field_is_rejected(kind: str) -> None:
    document = one(kind)
    document["spec"]["unknown"] = 1

    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(document, NEWEST)


def test_scaling_behavior_is_that_of_a_horizontal_pod_autoscaler() -> None:
    scaled = one("ScaledObject")["spec"]
    spec = {"maxReplicas": scaled["maxReplicaCount"], "scaleTargetRef": scaled["scaleTargetRef"]}
    spec |= scaled["advanced"]["horizontalPodAutoscalerConfig"]
    document = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"}, "spec": spec}

    kubernetes_validate.validate(document, NEWEST, strict=True)


def test_settings_are_valid_and_reach_the_probes(tmp_path: Path) -> None:
    found = settings(tmp_path)
    [port] = container("Deployment")["ports"]

    assert found.http.host == "0.0.0.0"
    assert port["containerPort"] == found.http.port


def test_pod_has_the_termination_time_that_the_grace_of_functions_requires(tmp_path: Path) -> None:
    assert pod("Deployment")["terminationGracePeriodSeconds"] == max(30, settings(tmp_path).worker.grace_seconds + 10)


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probe_requests_a_page_of_the_worker(probe: str) -> None:
    path = container("Deployment")[probe]["httpGet"]["path"]

    assert path == ("/health/ready" if probe == "readinessProbe" else "/health/live")
    assert path in ALWAYS_SERVED


PODS = [("Deployment", None), ("Deployment", CONSOLE), ("Job", None)]


@pytest.mark.parametrize(("kind", "name"), PODS)
def test_pod_mounts_the_files_named_in_the_settings(kind: str, name: str | None, tmp_path: Path) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container(kind, name)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(kind, name)["volumes"]}
    secret = settings(tmp_path).redis.password_file

    assert secret is not None
    assert volumes[mounts[str(secret.parent)]]["secret"]["secretName"] == one("Secret")["metadata"]["name"]
    assert secret.name in one("Secret")["stringData"]
    assert mounts["/etc/streams_app/streams.toml"] == "settings"
    assert volumes["settings"]["configMap"]["name"] == one("ConfigMap")["metadata"]["name"]
    assert mounts.keys() - {"/tmp"} == {"/etc/streams_app/streams.toml", str(secret.parent)}


@pytest.mark.parametrize(("kind", "name"), PODS)
def test_image_has_this_version_and_runs_as_its_user(kind: str, name: str | None) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")

    assert container(kind, name)["image"] == f"streams-app:{VERSION}"
    assert f"--uid {pod(kind, name)['securityContext']['runAsUser']} " in dockerfile
    assert re.search(r"^ENV STREAMS_APP_CONFIG=/etc/streams_app/streams\.toml", dockerfile, re.MULTILINE)


def test_job_is_not_retried_after_a_configuration_error() -> None:
    [rule] = one("Job")["spec"]["podFailurePolicy"]["rules"]

    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": container("Job")["name"], "operator": "In", "values": [1]}


def test_service_monitor_and_disruption_budget_select_workers_but_not_the_job() -> None:
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    service = one("Service")
    [endpoint] = one("ServiceMonitor")["spec"]["endpoints"]

    assert labels == one("Deployment")["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert labels == one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    assert one("ServiceMonitor")["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["path"] in ALWAYS_SERVED
    assert labels != one("Job")["spec"]["template"]["metadata"]["labels"]


def test_workers_scale_by_the_lag_that_they_report() -> None:
    scaled = one("ScaledObject")["spec"]
    [trigger] = scaled["triggers"]
    deployment = one("Deployment")

    assert {"streams_app_lag_events": set()} == unknown_labels(trigger["metadata"]["query"])
    assert f'job="{one("Service")["metadata"]["name"]}"' in trigger["metadata"]["query"]
    assert scaled["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    assert scaled["minReplicaCount"] >= 1
    assert "replicas" not in deployment["spec"]


def test_console_reaches_the_workers_has_a_token_and_is_reached_by_its_service(tmp_path: Path) -> None:
    found, service = settings(tmp_path).console, one("Service", CONSOLE)
    [port] = container("Deployment", CONSOLE)["ports"]
    [workers] = one("Service")["spec"]["ports"]
    labels = one("Deployment", CONSOLE)["spec"]["template"]["metadata"]["labels"]

    assert ["console"] == container("Deployment", CONSOLE)["args"]
    assert (found.port, port["name"]) == (port["containerPort"], service["spec"]["ports"][0]["targetPort"])
    assert labels == one("Deployment", CONSOLE)["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert (f"{one('Service')['metadata']['name']}:{workers['port']}",) == found.workers
    assert found.token_file is not None
    assert found.token_file.name in one("Secret")["stringData"]
    assert labels != one("Deployment")["spec"]["template"]["metadata"]["labels"]
