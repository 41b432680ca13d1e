"""The image and the compose file. No container engine runs in the tests, so both are read, and the check is run."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from tests.process import Process
from tests.upstream import Upstream

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
HASH = "sha256:" + "0" * 64


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, with continued lines joined and comments left out."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def last_stage() -> dict[str, list[str]]:
    """Arguments of each instruction of the stage that becomes the image."""
    found: dict[str, list[str]] = {}
    for name, rest in instructions():
        if name == "FROM":
            found = {}
        found.setdefault(name, []).append(rest)
    return found


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def ignored(path: str) -> bool:
    """What .dockerignore says about a path: here everything, except for what it names."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    return not any(path == keep or path.startswith(f"{keep}/") for keep in kept)


def test_the_gateway_is_process_one() -> None:
    """A shell in between would keep the stop signal to itself, and every stream would be cut at the end of grace."""
    stage = last_stage()

    (entry,), (command,) = stage["ENTRYPOINT"], stage["CMD"]

    assert ["tiergate"] == json.loads(entry)
    assert "serve" == json.loads(command)[0]
    assert ["SIGTERM"] == stage["STOPSIGNAL"]


def test_the_image_runs_as_a_number_that_is_not_root() -> None:
    """Kubernetes' runAsNonRoot refuses a name, since it cannot tell who that is; the chart uses the same number."""
    (user,) = last_stage()["USER"]
    deployment = (ROOT / "helm" / "tiergate" / "templates" / "deployment.yaml").read_text()

    uid, _, gid = user.partition(":")

    assert int(uid) > 0
    assert f"runAsUser: {uid}\n" in deployment
    assert f"runAsGroup: {gid}\n" in deployment


def test_the_image_is_built_in_stages_from_one_slim_base() -> None:
    """pip, its cache and the sources stay behind."""
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    copied = [rest for rest in last_stage()["COPY"] if not rest.startswith("--from=build ")]

    assert 2 == len(bases)
    assert {"python:${PYTHON_VERSION}-slim"} == set(bases)
    assert ["deploy/healthcheck.py /opt/tiergate/healthcheck.py"] == copied


def test_everything_that_the_image_is_built_from_is_there() -> None:
    """A file that .dockerignore hides, or that was renamed, would stop the build, which no test here can run."""
    wanted = ["README.md", "LICENSE", *(f"{package}/__init__.py" for package in packages())]
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            wanted += [source for source in rest.split()[:-1] if source != "."]

    assert [] == [path for path in wanted if not (ROOT / path).exists() or ignored(path)]
    assert ignored(".venv/bin/python")
    assert ignored("tests/conftest.py")
    assert ignored(".git/config")


def test_the_image_has_the_system_libraries_of_the_embedded_model() -> None:
    """The slim base lacks some that a usual machine has: it would start here, and not there."""
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    needed = {
        name.decode()
        for library in Path(spec.origin).parent.glob("*.so")
        for name in re.findall(rb"\0(lib[a-z+]+)\.so\.\d+(?=\0)", library.read_bytes())
    }
    installed = {name for rest in last_stage()["RUN"] for name in re.findall(r"\b(lib[a-z+]+)\d\b", rest)}

    assert "libgomp" in needed
    assert needed <= {"libc", "libm", "libpthread", "libdl", "librt", "libstdc++", "libgcc_s"} | installed


def packages() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]]


@pytest.mark.parametrize("extras", ["", "local", "local, providers"])
def test_the_step_that_lists_the_dependencies_lists_them(extras: str, tmp_path: Path) -> None:
    """It is a line of Python in the Dockerfile: it runs here as it does there."""
    (run,) = [rest for name, rest in instructions() if name == "RUN" and "tomllib" in rest]
    code = shlex.split(run.partition(" > ")[0])[2].replace("${EXTRAS}", extras)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in filter(None, extras.replace(" ", "").split(",")):
        wanted += project["optional-dependencies"][extra]

    listed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert wanted == listed.stdout.splitlines()


def commands() -> dict[str, list[str]]:
    """How the gateway is started: by the image, by compose, by the chart."""
    (image,) = last_stage()["CMD"]
    with helm.Chart.load(ROOT / "helm" / "tiergate") as chart:
        rendered = chart.render(None, name="demo", namespace="llm")
    deployment = yaml.safe_load(rendered["tiergate/templates/deployment.yaml"])
    return {
        "image": json.loads(image),
        "compose": compose()["services"]["tiergate"]["command"],
        "chart": deployment["spec"]["template"]["spec"]["containers"][0]["args"],
    }


@pytest.mark.parametrize("where", ["image", "compose", "chart"])
def test_the_command_line_understands_how_it_is_started(where: str) -> None:
    """With a renamed option no pod would start. Here all is well but for the policy, which is not mounted."""
    command = [argument.replace("/etc/tiergate/", "/nowhere/") for argument in commands()[where]]

    run = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (1, "") == (run.returncode, run.stdout), run.stderr
    assert "/nowhere/policy.yaml: no such file" in run.stderr


def health_check(port: int) -> int:
    """The HEALTHCHECK of the image, run here with this port."""
    (check,) = last_stage()["HEALTHCHECK"]
    python, script, _ = json.loads(check.partition("CMD ")[2])
    assert ("python", "/opt/tiergate/healthcheck.py") == (python, script)
    command = [sys.executable, str(DEPLOY / "healthcheck.py"), str(port)]
    proxy = "http://127.0.0.1:9"  # as in many companies; asking it about our own loopback would fail
    return subprocess.run(command, env={"http_proxy": proxy, "HTTP_PROXY": proxy}, check=False, timeout=10).returncode


async def test_the_health_check_tells_a_living_gateway_from_a_dead_one(tmp_path: Path) -> None:
    """The check is the only thing that the engine knows of the gateway."""
    async with Upstream() as upstream:
        policy = tmp_path / "policy.yaml"
        deployment = f"{{name: a, model: openai/m, api_base: '{upstream.url}', api_key: k}}"
        policy.write_text(f"version: 1\ntiers: {{small: {{deployments: [{deployment}]}}}}\n")
        async with Process(policy) as gateway:
            await gateway.ready()
            alive = health_check(gateway.port)
            other = health_check(upstream.port)
        dead = health_check(gateway.port)

    assert (0, 1, 1) == (alive, other, dead)


def test_compose_names_only_files_that_exist() -> None:
    """The engine makes a folder of a mount that is missing, and the service then fails in its own way."""
    mounts = [
        volume.split(":")[0]
        for service in compose()["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    build = compose()["services"]["tiergate"]["build"]

    assert 5 == len(mounts)
    assert [] == [mount for mount in mounts if not (DEPLOY / mount).exists()]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert (DEPLOY / build["context"]).resolve() == ROOT


def test_compose_has_the_four_services_and_each_is_checked() -> None:
    """depends_on waits for checks; the gateway's own is in its image."""
    services = compose()["services"]

    assert {"tiergate", "redis", "prometheus", "grafana"} == set(services)
    assert {"tiergate"} == {name for name, service in services.items() if "healthcheck" not in service}
    waited_for = {name for service in services.values() for name in service.get("depends_on", {})}
    assert waited_for <= set(services)


def test_compose_publishes_nothing_beyond_this_machine() -> None:
    """An engine's published port goes past most firewalls."""
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]

    assert 3 == len(ports)
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_holds_no_secret() -> None:
    """What must be set stops with a message that says how; what may be set is passed on by name alone."""
    services = compose()["services"]
    gateway, grafana = services["tiergate"]["environment"], services["grafana"]["environment"]

    assert gateway.pop("TIERGATE_KEY_HASH").startswith("${TIERGATE_KEY_HASH:?")
    assert {None} == set(gateway.values())
    assert grafana["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_PASSWORD:?")


def test_compose_lets_streams_end() -> None:
    """The engine kills ten seconds after its signal, unless told otherwise."""
    gateway = compose()["services"]["tiergate"]
    grace = gateway["command"][gateway["command"].index("--grace") + 1]

    assert int(gateway["stop_grace_period"].rstrip("s")) > int(grace.rstrip("s"))
    assert gateway["read_only"]
    assert any(mount.startswith("/tmp") for mount in gateway["tmpfs"])


def test_prometheus_scrapes_the_gateway_of_compose() -> None:
    """Names of services are the only addresses there are."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    gateway = compose()["services"]["tiergate"]

    assert "tiergate:4000" == target
    assert "4000" == gateway["command"][gateway["command"].index("--port") + 1]


def test_every_variable_of_the_mounted_policy_reaches_the_gateway() -> None:
    """A variable that compose does not pass on would turn its deployment off, whatever the operator sets."""
    named = set(re.findall(r"\$\{(\w+)", (DEPLOY / "policy.yaml").read_text()))

    assert named <= set(compose()["services"]["tiergate"]["environment"])


def test_the_gateway_understands_the_mounted_policy() -> None:
    """With all variables set every deployment is on; without them the embedded model is left, and it is enough."""
    from router.policy_file import load_policy

    text = (DEPLOY / "policy.yaml").read_text(encoding="utf-8")
    key = {"TIERGATE_KEY_HASH": HASH}
    medium = {"MEDIUM_MODEL": "Qwen3-32B", "MEDIUM_API_BASE": "http://127.0.0.1:8000/v1", "ANTHROPIC_API_KEY": "k"}

    full = load_policy(text, key | medium, installed=lambda _: True)
    bare = load_policy(text, key, installed=lambda _: True)

    assert (("small", "medium", "large"), ()) == (full.policy.tier_names, full.off)
    assert ("small",) == bare.policy.tier_names
    assert ["qwen", "claude-sonnet"] == [off.deployment for off in bare.off]


def test_the_mounted_policy_says_what_the_default_policy_says() -> None:
    """Prices, windows, limits and rules of the same models are read in both; only the medium tier is one's own."""
    mounted = yaml.safe_load((DEPLOY / "policy.yaml").read_text(encoding="utf-8"))
    default = yaml.safe_load((ROOT / "policies" / "default.yaml").read_text(encoding="utf-8"))

    assert default["rules"] == mounted["rules"]
    assert default["routes"]["auto"] == mounted["routes"]["auto"]
    for name in ("small", "large"):
        ours, theirs = (policy["tiers"][name] for policy in (mounted, default))
        assert theirs["deployments"][0] == ours["deployments"][0]
        assert {**theirs, "deployments": []} == {**ours, "deployments": []}
