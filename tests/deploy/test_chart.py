"""The Helm chart, rendered and linted by the real Helm library, its objects checked against Kubernetes' schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tiergate"
KUBERNETES = "1.37"
NOT_KUBERNETES = {"ServiceMonitor"}  # of the Prometheus operator: no schema here, so it has a test of its own
HASH = "sha256:" + "0" * 64

Values = dict[str, Any]
Objects = dict[str, dict[str, Any]]

INGRESS: Values = {
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
        "hosts": [{"host": "llm.example.com"}, {"host": "b.example", "paths": [{"path": "/", "pathType": "Prefix"}]}],
        "tls": [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}],
    }
}
VARIANTS: dict[str, Values] = {
    "defaults": {},
    "autoscaled": {"autoscaling": {"enabled": True, "targetInFlight": 30}},
    "ingress": INGRESS,
    "local models on a volume": {
        "models": {"existingClaim": "gguf"},
        "workers": 4,
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}},
    },
    "secrets that exist": {
        "keyHash": {"secretName": "mine", "secretKey": "hash"},
        "secretEnv": [
            {"name": "ANTHROPIC_API_KEY", "secretName": "llm", "secretKey": "anthropic"},
            {"name": "MEDIUM_API_KEY", "secretName": "llm", "secretKey": "vllm", "optional": True},
        ],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "env": {"MEDIUM_MODEL": "Qwen3-32B", "DIGITS": "0123", "SWITCH": "true"},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "policy of one's own": {"existingPolicy": {"configMap": "mine", "key": "p.yaml"}, "keyHash": {"enabled": False}},
    "operated": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "monitoring"}},
        "networkPolicy": {
            "enabled": True,
            "ingressFrom": [{"namespaceSelector": {}}],
            "egress": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
        },
        "podDisruptionBudget": {"enabled": True, "maxUnavailable": "25%"},
        "serviceAccount": {"create": True, "annotations": {"eks.amazonaws.com/role-arn": "arn"}},
    },
    "placed": {
        "nodeSelector": {"pool": "llm"},
        "tolerations": [{"key": "llm", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "priorityClassName": "high",
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    },
    "bare": {
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
        "preStopSeconds": 0,
        "image": {"repository": "registry.example/tiergate", "digest": HASH},
        "tmp": {"medium": ""},
    },
}


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def render(chart: helm.Chart, values: Values | None = None) -> Objects:
    """Objects by kind; each kind occurs at most once in this chart."""
    documents = [
        document
        for name, text in chart.render(values, name="demo", namespace="llm").items()
        if not name.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document
    ]
    objects = {document["kind"]: document for document in documents}
    assert len(objects) == len(documents)
    return objects


def pod(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return spec


def container(objects: Objects) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    return dict(only)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_renders_objects_that_kubernetes_accepts(chart: helm.Chart, values: Values) -> None:
    """A misspelt field would be dropped by the API server, or stop an upgrade halfway: strict schemas find it here."""
    objects = render(chart, values)

    assert {"Deployment", "Service"} <= objects.keys()
    for kind, document in objects.items():
        if kind not in NOT_KUBERNETES:
            assert kubernetes_validate.validate(document, KUBERNETES, strict=True) == KUBERNETES


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_helm_lint_has_nothing_to_say(values: Values) -> None:
    """`helm lint --strict` is what the users' pipelines run. It may only miss an icon."""
    report = helm.lint(CHART, values, strict=True, namespace="llm")

    assert [] == report["errors"]
    assert ["icon is recommended"] == [message["error"] for message in report["messages"]]


def test_strict_schemas_do_find_a_misspelt_field(chart: helm.Chart) -> None:
    """Otherwise the test above could not fail."""
    deployment = render(chart)["Deployment"]
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 5

    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


REFUSED: dict[str, tuple[Values, str]] = {
    "unknown name": ({"replicas": 3}, "replicas"),
    "unknown name deep inside": ({"autoscaling": {"enabled": True, "maxReplica": 3}}, "maxReplica"),
    "number as text": ({"replicaCount": "three"}, "replicaCount"),
    "no workers": ({"workers": 0}, "workers"),
    "policy as a mapping": ({"policy": {"version": 1}}, "policy"),
    "empty policy": ({"policy": ""}, "policy"),
    "a secret in plain sight": ({"env": {"OPENAI_API_KEY": "sk-1"}}, "OPENAI_API_KEY"),
    "the same in small letters": ({"env": {"db_password": "x"}}, "db_password"),
    "a number for the environment": ({"env": {"BIG": 10000000}}, "BIG"),
    "secret without a name": ({"secretEnv": [{"name": "A", "secretKey": "b"}]}, "secretName"),
    "value beside a secret's name": (
        {"secretEnv": [{"name": "A", "secretName": "s", "secretKey": "b", "value": "sk-1"}]},
        "value",
    ),
    "ingress without a host": ({"ingress": {"enabled": True}}, "hosts"),
    "digest that is none": ({"image": {"repository": "tiergate", "digest": "latest"}}, "digest"),
    "log level": ({"logLevel": "loud"}, "logLevel"),
    "budget that allows nothing": ({"podDisruptionBudget": {"enabled": True, "maxUnavailable": 0}}, "maxUnavailable"),
}


@pytest.mark.parametrize(("values", "name"), REFUSED.values(), ids=REFUSED)
def test_a_bad_value_is_refused_by_name(chart: helm.Chart, values: Values, name: str) -> None:
    """A misspelt value that is silently ignored is found weeks later; a secret in values is never found."""
    with pytest.raises(helm.HelmValuesError, match=name):
        chart.render(values, name="demo", namespace="llm")


def test_the_autoscaler_refuses_a_minimum_above_its_maximum(chart: helm.Chart) -> None:
    """A schema cannot compare two values."""
    with pytest.raises(helm.HelmRenderError, match="minReplicas is above"):
        render(chart, {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}})


def test_the_schema_knows_every_default(chart: helm.Chart) -> None:
    """values.yaml is the documentation: what it names must be allowed, and what is allowed should be in it."""
    schema = chart.schema
    assert schema is not None

    assert set(schema["properties"]) - {"global"} == set(chart.values)


def test_a_changed_policy_rolls_the_pods(chart: helm.Chart) -> None:
    """Without a changed annotation the Deployment would not see that its ConfigMap did."""

    def checksum(values: Values) -> str:
        metadata = render(chart, values)["Deployment"]["spec"]["template"]["metadata"]
        return str(metadata["annotations"]["checksum/policy"])

    policy = chart.values["policy"]
    assert checksum({}) == checksum({"policy": policy})
    assert checksum({}) != checksum({"policy": policy + "timeout: 5m\n"})


def test_the_policy_arrives_as_it_was_written(chart: helm.Chart) -> None:
    """The order of tiers is the order of escalation: a mapping would have come out sorted, large before small."""
    policy = chart.values["policy"]

    written = render(chart)["ConfigMap"]["data"]["policy.yaml"]

    assert policy == written
    assert ["small", "medium", "large"] == list(yaml.safe_load(written)["tiers"])


def test_the_gateway_understands_the_default_policy(chart: helm.Chart) -> None:
    """With its Secret the default installation starts; all that is optional is off, and what is left can answer."""
    from router.policy_file import load_policy

    text = render(chart)["ConfigMap"]["data"]["policy.yaml"]
    names = [entry["name"] for entry in container(render(chart))["env"]]
    environ = dict.fromkeys(names, HASH)

    policy = load_policy(text, environ, installed=lambda _: True).policy

    assert HASH == policy.keys[0].hash
    assert ("small",) == policy.tier_names


def test_the_default_policy_asks_for_the_hash_of_a_key(chart: helm.Chart) -> None:
    """Outside of loopback the gateway serves nobody without a key; the hash comes from a Secret that must exist."""
    from router.policy_file import PolicyError, load_policy

    with pytest.raises(PolicyError, match="TIERGATE_KEY_HASH"):
        load_policy(chart.values["policy"], {})

    (entry,) = [e for e in container(render(chart))["env"] if e["name"] == "TIERGATE_KEY_HASH"]
    assert {"secretKeyRef": {"name": "tiergate-keys", "key": "TIERGATE_KEY_HASH"}} == entry["valueFrom"]


def test_compose_and_chart_start_from_the_same_policy(chart: helm.Chart) -> None:
    """Two defaults that drift apart would behave differently on a laptop and in the cluster."""
    compose = yaml.safe_load((ROOT / "deploy" / "policy.yaml").read_text(encoding="utf-8"))

    assert compose == yaml.safe_load(chart.values["policy"])


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_no_secret_is_ever_made_by_the_chart(chart: helm.Chart, values: Values) -> None:
    """A Secret rendered from values would live on in the release's history."""
    assert "Secret" not in render(chart, values)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_pods_are_restricted(chart: helm.Chart, values: Values) -> None:
    """What the pod security standard `restricted` asks for, and a root file system that nobody can write to."""
    objects = render(chart, values)
    security, inner = pod(objects)["securityContext"], container(objects)["securityContext"]

    assert security["runAsNonRoot"]
    assert security["runAsUser"] > 0
    assert {"type": "RuntimeDefault"} == security["seccompProfile"]
    assert not inner["allowPrivilegeEscalation"]
    assert {"drop": ["ALL"]} == inner["capabilities"]
    assert inner["readOnlyRootFilesystem"]
    assert not pod(objects)["automountServiceAccountToken"]
    assert {"/tmp", "/etc/tiergate"} <= {mount["mountPath"] for mount in container(objects)["volumeMounts"]}


def test_a_pod_has_time_to_finish_its_streams(chart: helm.Chart) -> None:
    """Kubernetes kills after its own period: it must cover the wait before the signal and the gateway's grace."""
    objects = render(chart, {"graceSeconds": 300, "preStopSeconds": 7})

    assert 7 == container(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert "--grace=300s" in container(objects)["args"]
    assert pod(objects)["terminationGracePeriodSeconds"] > 307


def test_services_in_the_namespace_do_not_leak_into_the_environment(chart: helm.Chart) -> None:
    """Kubernetes would set TIERGATE_PORT=tcp://... for a Service called tiergate, where a policy may say ${NAME}."""
    assert pod(render(chart))["enableServiceLinks"] is False


def test_probes_ask_what_they_mean(chart: helm.Chart) -> None:
    """A liveness probe that asks for readiness restarts a gateway whose upstreams are down."""
    only = container(render(chart))
    (port,) = only["ports"]

    asked = {name: only[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}

    assert "/health/live" == asked["startupProbe"]["path"] == asked["livenessProbe"]["path"]
    assert "/health/ready" == asked["readinessProbe"]["path"]
    assert {"http"} == {get["port"] for get in asked.values()} == {port["name"]}
    assert f"--port={port['containerPort']}" in only["args"]


def test_the_autoscaler_owns_the_number_of_replicas(chart: helm.Chart) -> None:
    """A number in the Deployment would undo the autoscaler's at every upgrade."""
    fixed, scaled = render(chart), render(chart, VARIANTS["autoscaled"])

    assert 2 == fixed["Deployment"]["spec"]["replicas"]
    assert "HorizontalPodAutoscaler" not in fixed
    assert "replicas" not in scaled["Deployment"]["spec"]
    autoscaler = scaled["HorizontalPodAutoscaler"]["spec"]
    assert scaled["Deployment"]["metadata"]["name"] == autoscaler["scaleTargetRef"]["name"]
    assert ["Resource", "Pods"] == [metric["type"] for metric in autoscaler["metrics"]]


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_whatever_selects_pods_selects_ours(chart: helm.Chart, values: Values) -> None:
    """A selector that matches nothing is accepted by Kubernetes and does nothing."""
    objects = render(chart, values)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [objects["Service"]["spec"]["selector"], objects["Deployment"]["spec"]["selector"]["matchLabels"]]
    if budget := objects.get("PodDisruptionBudget"):
        selectors.append(budget["spec"]["selector"]["matchLabels"])
    if network := objects.get("NetworkPolicy"):
        selectors.append(network["spec"]["podSelector"]["matchLabels"])

    assert all(selector and selector.items() <= labels.items() for selector in selectors)


def test_only_the_api_is_published(chart: helm.Chart) -> None:
    """/metrics and /health tell an outsider more than he needs."""
    first, second = render(chart, INGRESS)["Ingress"]["spec"]["rules"]

    assert ["/v1"] == [path["path"] for path in first["http"]["paths"]]
    assert ["/"] == [path["path"] for path in second["http"]["paths"]]


def test_the_service_monitor_scrapes_the_service(chart: helm.Chart) -> None:
    """The operator finds the Service by labels and the port by name; the alert rules look for the job's name."""
    objects = render(chart, VARIANTS["operated"])
    monitor, service = objects["ServiceMonitor"], objects["Service"]
    (endpoint,) = monitor["spec"]["endpoints"]

    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["name"] == endpoint["port"]
    assert "/metrics" == endpoint["path"]
    assert "tiergate" in service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert "monitoring" == monitor["metadata"]["labels"]["release"]


def test_notes_say_how_to_make_the_key(chart: helm.Chart) -> None:
    """The first thing that a new installation waits for."""
    notes = chart.render(None, name="demo", namespace="llm")["tiergate/templates/NOTES.txt"]

    assert "tiergate keys new app" in notes
    assert "http://demo-tiergate.llm.svc:80/v1" in notes
