"""What is in docker/ and deploy/ is valid, agrees with the gateway, and is checked by the genuine programs if found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml
from typer.testing import CliRunner

from adapters import ADAPTERS
from gateway.cli import app
from gateway.settings.config import load
from tests.nats import PROGRAM as NATS
from tests.ports import reserved_port
from tests.server import Server

ROOT = Path(__file__).parent.parent
DOCKER, DEPLOY = ROOT / "docker", ROOT / "deploy"
DASHBOARD = json.loads((DOCKER / "grafana/dashboards/trellis.json").read_text())
ALERTS = yaml.safe_load((DOCKER / "prometheus/alerts.yml").read_text())
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
KUBERNETES = {each["kind"]: each for each in yaml.safe_load_all((DOCKER / "kubernetes/gateway.yaml").read_text())}
METRICS = {
    line.split()[1].partition("{")[0]: set(filter(None, line.partition("{")[2].rstrip("}").split(",")))
    for line in (ROOT / "tests/golden/metrics.txt").read_text().splitlines()
}
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ADDED = {"instance", "job", "le"}  # labels that Prometheus adds, and that histograms have


def program(name: str) -> str:
    """The path of a program that the machine may not have."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    return found or pytest.skip(f"there is no {name}")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# Prometheus and Grafana


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *(rule["expr"] for rule in RULES)])
def test_every_metric_and_label_that_is_shown_exists(expression: str) -> None:
    used = set(re.findall(r"\b(?:trellis|process)_\w+", re.sub(r"\{[^}]*\}", "", expression)))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in METRICS else name for name in used}
    assert families <= METRICS.keys(), families - METRICS.keys()
    labels = set[str]().union(ADDED, *(METRICS[name] for name in families))
    wanted = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    assert wanted <= labels, wanted - labels


def test_every_metric_is_in_the_dashboard() -> None:
    shown = " ".join(EXPRESSIONS)
    missing = {name for name in METRICS if name.startswith("trellis_") and name not in shown}
    assert missing == set()


def test_no_panel_covers_another() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

    panels = DASHBOARD["panels"]
    assert all(cells(one).isdisjoint(cells(other)) for one, other in combinations(panels, 2))
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(x < 24 for panel in panels for x, _ in cells(panel))


def test_every_alert_has_a_severity_and_a_description() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_promtool_accepts_configuration_alerts_and_panels(tmp_path: Path) -> None:
    promtool = program("promtool")
    folder = DOCKER / "prometheus"
    run(promtool, "check", "config", folder / "prometheus.yml")
    run(promtool, "check", "rules", folder / "alerts.yml")
    run(promtool, "test", "rules", folder / "alerts.test.yml")
    plain = [each.replace("$__rate_interval", "5m").replace("$instance", ".*") for each in EXPRESSIONS]
    rules = [{"record": f"panel_{number}", "expr": each} for number, each in enumerate(plain)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    run(promtool, "check", "rules", "--lint=none", tmp_path / "panels.yml")


def test_promtool_accepts_the_metrics_of_the_gateway(tmp_path: Path) -> None:
    promtool = program("promtool")
    with Server(tmp_path) as server:
        text = httpx.get(f"http://{server.http}/metrics").text
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    # It advises against what is a contract now, and reports nothing else.
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "trellis_" in line]
    assert complaints == []


# Compose and Kubernetes


def test_compose_uses_existing_files_and_settings() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DOCKER / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], name
        assert set(service.get("depends_on", {})) <= services.keys()
    settings = services["gateway"]["environment"]
    values = {name.removeprefix("TRELLIS_").lower().replace("__", "."): value for name, value in settings.items()}
    assert load(ADAPTERS, None, values).metrics.port == 9464
    target = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    assert target["static_configs"] == [{"targets": ["gateway:9464"]}]
    gateway = services["gateway"]
    assert (gateway["read_only"], gateway["cap_drop"]) == (True, ["ALL"])


def test_docker_accepts_the_compose_file() -> None:
    docker = program("docker")
    if subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose")
    run(docker, "compose", "-f", DOCKER / "compose.yaml", "--profile", "monitoring", "config", "--quiet")


def test_the_parts_of_the_kubernetes_manifest_agree(tmp_path: Path) -> None:
    stateful = KUBERNETES["StatefulSet"]["spec"]
    pod = stateful["template"]
    assert stateful["replicas"] == 1
    labels = pod["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels == KUBERNETES["Service"]["spec"]["selector"]
    assert stateful["serviceName"] == KUBERNETES["Service"]["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"] for port in KUBERNETES["Service"]["spec"]["ports"]} <= ports.keys()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    volumes = {each["name"] for each in pod["spec"]["volumes"]}
    volumes |= {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    file = tmp_path / "trellis.toml"
    file.write_text(KUBERNETES["ConfigMap"]["data"]["trellis.toml"])
    settings = load(ADAPTERS, file)
    assert (settings.port, settings.section(ADAPTERS[1]).port) == (ports["http"], ports["sprout"])
    assert settings.metrics.port == ports["metrics"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(str(settings.data).startswith(f"{mount}/") for mount in mounts), "data is below a volume, not one itself"
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [container["args"][0], "--help"]).output
    assert all(word in shown for word in container["args"] if word.startswith("--"))


# A cluster


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    names = {name: value for name, value in service["environment"].items() if name.startswith("TRELLIS_")}
    found = {name.removeprefix("TRELLIS_").lower().replace("__", "."): value for name, value in names.items()}
    return found | {name: json.loads(value) for name, value in found.items() if value.startswith("[")}


def test_the_gateways_of_the_cluster_file_are_members_of_one_cluster() -> None:
    services = yaml.safe_load((DOCKER / "cluster/compose.yaml").read_text())["services"]
    members = [load(ADAPTERS, None, environment_of(each)) for name, each in services.items() if name[:7] == "gateway"]
    assert {each.cluster.gateway for each in members} == {"one", "two", "three"}
    servers = {name: each for name, each in services.items() if name.startswith("nats-")}
    for each in members:
        assert each.cluster.url == tuple(f"nats://{name}:4222" for name in servers)
        assert each.cluster.replicas == len(servers)
    assert [each["environment"]["NAME"] for each in servers.values()] == [*servers]
    for each in services.values():
        assert set(each.get("depends_on", ())) <= services.keys()


def test_the_manifest_of_the_pipeline_fits_the_schema_of_the_operator() -> None:
    told = json.loads((ROOT / "tests/vectors/kubernetes/spark-application.json").read_text())
    manifest = yaml.safe_load((DOCKER / "spark-application.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == (told["apiVersion"], told["kind"])
    schema = jsonschema_rs.Draft7Validator(told["spec"])
    schema.validate(manifest["spec"])
    faulty: list[dict[str, Any]] = [{"memroy": "1g"}, {"cores": 0}, {"volumeMounts": [{"name": "data"}]}]
    for fault in faulty:
        executor = manifest["spec"]["executor"] | fault
        assert not schema.is_valid(manifest["spec"] | {"executor": executor}), "what the operator would refuse"


@pytest.mark.parametrize("place", ["compose", "kubernetes"])
def test_nats_server_accepts_its_configuration(place: str, tmp_path: Path) -> None:
    file = DOCKER / "cluster/nats.conf"
    if place == "kubernetes":
        found = yaml.safe_load_all((DOCKER / "kubernetes/cluster.yaml").read_text())
        file = tmp_path / "nats.conf"
        file.write_text(next(each["data"]["nats.conf"] for each in found if "nats.conf" in each.get("data", ())))
    text = file.read_text()
    assert "max_payload: 8MB" in text
    assert "sync_interval: always" in text
    done = subprocess.run(
        [NATS, "-t", "-c", file], env={"NAME": "one", "POD": "one"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_parts_of_the_cluster_on_kubernetes_agree(tmp_path: Path) -> None:
    parts = [*yaml.safe_load_all((DOCKER / "kubernetes/cluster.yaml").read_text())]
    found = {(each["kind"], each["metadata"]["name"]): each for each in parts}
    for name in ("trellis", "trellis-nats"):
        stateful = found["StatefulSet", name]["spec"]
        pod = stateful["template"]
        labels = pod["metadata"]["labels"]
        assert stateful["replicas"] == 3
        assert stateful["selector"]["matchLabels"] == labels == found["Service", name]["spec"]["selector"]
        assert found["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
        volumes = {each["name"] for each in pod["spec"]["volumes"]} | {"data"}
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in found["Service", name]["spec"]["ports"]} <= ports
    file = tmp_path / "trellis.toml"
    file.write_text(found["ConfigMap", "trellis"]["data"]["trellis.toml"])
    cluster = load(ADAPTERS, file, {"cluster.gateway": "trellis-0"}).cluster
    assert cluster.url == tuple(f"nats://trellis-nats-{at}.trellis-nats:4222" for at in range(3))
    gateway = found["StatefulSet", "trellis"]["spec"]["template"]["spec"]
    seed, data = tmp_path / "seed", tmp_path / "data"
    for each in (seed, data):
        each.mkdir()
    (seed / "gateway.json").write_text("a key")
    (script,) = gateway["initContainers"][0]["args"]
    script = script.replace("/seed", str(seed)).replace("/var/lib/trellis", str(data))
    for _ in range(2):
        subprocess.run(["sh", "-ec", script], check=True)
        (seed / "gateway.json").write_text("another one")
    copied = data / "data/keys/gateway.json"
    assert (copied.read_text(), copied.stat().st_mode & 0o777) == ("a key", 0o600), "only if there are none"


def test_nginx_accepts_the_load_balancer(tmp_path: Path) -> None:
    """The half for HTTP: Debian's nginx has the module for TCP as a package of its own."""
    text = (DOCKER / "cluster/nginx.conf").read_text().partition("stream {")[0]
    for name in ("one", "two", "three"):
        text = text.replace(f"gateway-{name}", "127.0.0.1")
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\n{text}")
    run(program("nginx"), "-t", "-c", tmp_path / "nginx.conf", "-p", tmp_path)


# systemd


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    text = (DEPLOY / "systemd/trellis.service").read_text()
    (tmp_path / "trellis.service").write_text(text.replace("/opt/trellis/bin/trellis", sys.executable))
    said = run(analyze, "verify", "--man=no", tmp_path / "trellis.service")
    assert "trellis.service" not in said


def test_the_unit_starts_an_existing_command() -> None:
    text = (DEPLOY / "systemd/trellis.service").read_text()
    words = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1].split()  # type: ignore[index]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [words[1], "--help"]).output
    assert all(word in shown for word in words if word.startswith("--"))
    assert "Type=notify" in text
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text


# Reverse proxies


@pytest.mark.parametrize("file", ["caddy/Caddyfile", "nginx/trellis.conf"])
def test_proxies_pass_to_the_port_of_the_gateway(file: str) -> None:
    text = (DEPLOY / file).read_text()
    assert f"127.0.0.1:{load(ADAPTERS).port}" in text
    for key in re.findall(r"^#   (\w+) = ", text, re.MULTILINE):
        assert key in type(load(ADAPTERS)).model_fields


def test_caddy_accepts_its_file() -> None:
    run(program("caddy"), "validate", "--adapter", "caddyfile", "--config", DEPLOY / "caddy/Caddyfile")


def test_nginx_in_front_of_a_gateway_passes_everything_on(tmp_path: Path) -> None:
    """The file as it is, but for names, ports and the certificate."""
    nginx, port = program("nginx"), reserved_port()
    assert CliRunner().invoke(app, ["dev-cert", "--folder", str(tmp_path)]).exit_code == 0
    env = {"TRELLIS_TRUSTED_PROXIES": '["127.0.0.1"]'}
    with Server(tmp_path / "data", "--open-to-all", "--log-format", "json", env=env) as server:
        text = (DEPLOY / "nginx/trellis.conf").read_text().replace("127.0.0.1:8080", server.http)
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("    listen [::]:443 ssl;\n", "")
        text = text.replace("/etc/ssl/gateway.example.pem", f"{tmp_path}/cert.pem")
        text = text.replace("/etc/ssl/gateway.example.key", f"{tmp_path}/key.pem")
        temporary = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi"))
        temporary += "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("uwsgi", "scgi"))
        main = f"pid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\ndaemon off;\nmaster_process off;\nevents {{}}\n"
        (tmp_path / "nginx.conf").write_text(f"{main}http {{\naccess_log off;\n{temporary}{text}}}\n")
        proxy = subprocess.Popen([nginx, "-c", tmp_path / "nginx.conf", "-p", tmp_path], stderr=subprocess.PIPE)
        try:
            see_through(f"https://localhost:{port}", tmp_path / "ca.pem", server)
        finally:
            proxy.terminate()
            proxy.wait(10)
            assert proxy.stderr is not None
            proxy.stderr.close()


def see_through(url: str, authority: Path, server: Server) -> None:
    """A program, an event stream and a WebSocket, through a proxy that adds what it knows of the client."""
    import ssl

    from websockets.sync.client import connect

    trust = ssl.create_default_context(cafile=authority)
    end = time.monotonic() + 20
    transport = httpx.HTTPTransport(verify=trust, local_address="127.0.0.3")  # which is no proxy's address
    with httpx.Client(transport=transport, base_url=url, headers={"X-Forwarded-For": "198.51.100.7"}) as http:
        while True:
            try:
                assert http.get("/readyz").status_code == 200
                break
            except httpx.ConnectError:
                assert time.monotonic() < end
                time.sleep(0.05)
        with http.stream("GET", "/v1/channels/lobby/events") as events:
            lines = events.iter_lines()
            assert any(line == "event: welcome" for line in lines)
            with connect(f"{url.replace('https', 'wss')}/relay", ssl=trust) as ws:
                ws.send('{"type":6,"topic":"lobby","content":"through"}')
                assert any("through" in line for line in lines), "at once, not once a buffer is full"
        assert http.get("/v1/none").status_code == 404
    while '"refused"' not in server.log:
        assert time.monotonic() < end
        time.sleep(0.02)
    told = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    (refused,) = (line for line in told if line["event"] == "refused")
    assert refused["network"] == "127.0.0.3", "the client of the proxy, not what the client says of itself"
