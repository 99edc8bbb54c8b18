"""deploy/: manifests are valid, and start the servers with settings that they accept."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.office.opening import RegisterUrl
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.daemon import STOP_MS

ROOT = Path(__file__).resolve().parents[1]
PROMETHEUS = ROOT / "deploy" / "prometheus"
KUBERNETES = ROOT / "deploy" / "kubernetes"
PEER_URL = "ETCD_INITIAL_ADVERTISE_PEER_URLS"
POD = {"$(POD_NAME)": "lockstep-broker-0", "$(POD_INDEX)": "0", "$(POD_NAMESPACE)": "messaging"}

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def manifests_in(*files: Path) -> dict[str, dict[str, Any]]:
    return {f"{file.stem} {document['kind']}": document for file in files for document in documents(file)}


def patched(base: Any, patch: Any, key: str = "") -> Any:
    """Return a manifest with a patch as kustomize applies it: tables are merged, and lists of what has a name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = base | {name: patched(base.get(name), value, name) for name, value in patch.items()}
        return {name: value for name, value in merged.items() if value is not None}
    by = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}.get(key)
    if not isinstance(base, list) or by is None:
        return patch
    old = {each[by]: each for each in base}
    changed = {each[by]: patched(old.get(each[by]), each) for each in patch}
    return [*changed.values(), *(each for name, each in old.items() if name not in changed)]


def built(*components: str) -> dict[str, dict[str, Any]]:
    """Return the manifests with components, as kustomize makes them."""
    found = manifests_in(*(file for file in sorted(KUBERNETES.glob("*.yaml")) if file.stem != "kustomization"))
    for folder in (KUBERNETES / component for component in components):
        (component,) = documents(folder / "kustomization.yaml")
        found |= manifests_in(*(folder / each for each in component.get("resources", ())))
        for each in component["patches"]:
            (patch,) = documents(folder / each["path"])
            target = each.get("target") or {"kind": patch["kind"], "name": patch["metadata"]["name"]}
            for name, manifest in found.items():
                if manifest["kind"] == target["kind"] and re.fullmatch(target["name"], manifest["metadata"]["name"]):
                    found[name] = patched(manifest, {"spec": patch["spec"]})
    return found


MANIFESTS = built("replica")
SERVERS = [name for name in MANIFESTS if name.endswith("StatefulSet")]
DASHBOARD = "dashboard Deployment"


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = MANIFESTS[name]["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_fits_the_schema_of_kubernetes(name: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], kubernetes_validate.latest_version(), strict=True)


def test_kustomization_lists_the_manifests_of_the_servers() -> None:
    (kustomization,) = documents(KUBERNETES / "kustomization.yaml")
    listed = {Path(each).stem for each in kustomization["resources"]}
    assert listed == {name.split()[0] for name in (*SERVERS, DASHBOARD)} - {"replicas"}


def effective(arguments: list[str], variables: dict[str, str]) -> dict[str, str]:
    """Return the settings of a program with these arguments and variables, as it prints them."""
    shown = subprocess.run(
        [sys.executable, "-m", "lockstep.cli.main", *arguments, "--show-config"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "unknown" not in shown.stderr
    return dict(line.split(" = ", 1) for line in shown.stdout.splitlines() if " = " in line)


@pytest.mark.parametrize("name", [*SERVERS, DASHBOARD])
def test_server_accepts_its_arguments_and_variables(name: str) -> None:
    (container,) = pod(name)["containers"]
    variables = {each["name"]: with_pod(each["value"]) for each in container.get("env", []) if "value" in each}
    arguments = [with_pod(each) for each in container["args"]]
    assert "$(" not in " ".join((*arguments, *variables.values()))
    settings = effective(arguments, variables)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    server = container["name"]
    assert f"0.0.0.0:{ports.pop(server)}" in settings["listen"]
    assert all(f"0.0.0.0:{port}" in settings[f"{other}_listen"] for other, port in ports.items())
    if server == "broker":
        service = MANIFESTS[name]["spec"]["serviceName"]
        assert f"{service}-0.{service}.messaging.svc:10911" in settings["advertise"]
        assert settings["name"].startswith('"lockstep-broker-0"')
    if server != "nameserver":
        addresses = settings["nameserver"].split('"')[1].split(";")
        nameservers = MANIFESTS["nameservers StatefulSet"]
        service, port = nameservers["spec"]["serviceName"], MANIFESTS["nameservers Service"]["spec"]["ports"][0]["port"]
        assert addresses == [f"{nameservers['metadata']['name']}-{n}.{service}:{port}" for n in range(nameservers["spec"]["replicas"])]


def test_service_of_the_dashboard_leads_to_its_pod_whose_probes_do_not_depend_on_the_cluster() -> None:
    spec = pod(DASHBOARD)
    (container,) = spec["containers"]
    service = MANIFESTS["dashboard Service"]["spec"]
    assert service["selector"].items() <= MANIFESTS[DASHBOARD]["spec"]["template"]["metadata"]["labels"].items()
    assert [each["port"] for each in service["ports"]] == [each["containerPort"] for each in container["ports"]]
    assert service.get("type", "ClusterIP") == "ClusterIP", "whoever reaches it reads everything"
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {"/livez"}
    assert spec["terminationGracePeriodSeconds"] * 1_000 > STOP_MS


def test_composed_dashboard_is_for_this_machine_only_and_its_image_has_the_extra() -> None:
    """tests/e2e/test_compose.py runs it."""
    (compose,) = documents(ROOT / "docker-compose.yml")
    service = compose["services"]["dashboard"]
    assert service["ports"] == ["127.0.0.1:9880:9880"]
    settings = effective(service["command"].split(), service["environment"])
    assert "0.0.0.0:9880" in settings["listen"]
    names = settings["nameserver"].split('"')[1].split(";")
    assert {name.partition(":")[0] for name in names} == {each for each in compose["services"] if each.startswith("nameserver")}
    assert "http://127.0.0.1:9880/livez" in " ".join(service["healthcheck"]["test"])
    last = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "[dashboard,ha,secure]" in last
    assert service["build"] == ".", "the last target"


def test_composed_replica_is_one_of_broker_a_and_starts_with_its_profile_only() -> None:
    (compose,) = documents(ROOT / "docker-compose.yml")
    master, replica = (compose["services"][name] for name in ("broker-a", "broker-a-replica"))
    assert (master.get("profiles"), replica["profiles"]) == (None, ["replica"])
    of_master, of_replica = (effective(each["command"].split(), each["environment"]) for each in (master, replica))
    differ = {name for name in of_replica if of_master.get(name, "").split() != of_replica[name].split()}
    assert differ == {"replica_of", "advertise"}, "it takes the place of its master"
    assert of_replica["replica_of"].split('"')[1] in of_master["advertise"]
    assert not set(master["ports"]) & set(replica["ports"])
    assert replica["volumes"][0].partition(":")[0] in compose["volumes"]
    assert replica["volumes"] != master["volumes"]


def test_composed_copies_are_alike_but_for_their_addresses_and_have_their_register_in_the_etcd_that_is_started() -> None:
    """tests/e2e/test_compose.py runs them."""
    base, ha = (yaml.safe_load((ROOT / f"docker-compose{each}.yml").read_text()) for each in ("", ".ha"))
    etcd = {name: each for name, each in ha["services"].items() if name.startswith("etcd")}
    for name, each in etcd.items():
        variables = each["environment"]
        assert variables["ETCD_NAME"] == name
        assert variables["ETCD_INITIAL_CLUSTER"] == ",".join(f"{other}={etcd[other]['environment'][PEER_URL]}" for other in etcd)
        assert (variables[PEER_URL], variables["ETCD_ADVERTISE_CLIENT_URLS"]) == (f"http://{name}:2380", f"http://{name}:2379")
        assert (each["build"]["target"], each["volumes"]) == ("etcd", [f"{name}:/data"])
        assert "ports" not in each, "it has no login"
    for broker in ("broker-a", "broker-b"):
        first, changes, second = base["services"][broker], ha["services"][broker], ha["services"][f"{broker}-2"]
        assert second["environment"] == first["environment"] | changes["environment"]
        of_first, of_second = (effective(each["command"].split(), second["environment"]) for each in (first, second))
        assert {name for name in of_second if of_first[name].split() != of_second[name].split()} == {"advertise"}
        url = RegisterUrl.parse(of_second["ha"].split('"')[1])
        assert url.addresses == tuple(f"{name}:2379" for name in etcd)
        differ = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
        assert differ == {"command", "depends_on", "environment", "ports", "volumes"}
        assert not set(first["ports"]) & set(second["ports"])
        assert second["volumes"] == [f"{broker}-2:/data"]
    assert set(ha["volumes"]) == {*etcd, "broker-a-2", "broker-b-2"}


def test_pods_of_one_number_name_each_other_and_are_never_on_one_node_or_evicted_at_once() -> None:
    """tests/unit/broker/replication/test_pairs.py says what brokers with such settings do."""
    broker, replica = (MANIFESTS[f"{name} StatefulSet"] for name in ("brokers", "replicas"))
    named = {}
    for manifest in (broker, replica):
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        variables = {each["name"]: with_pod(each["value"]) for each in container["env"] if "value" in each}
        settings = effective([with_pod(each) for each in container["args"]], variables)
        named[settings["advertise"].split('"')[1].removeprefix("internal=")] = settings["replica_of"].split('"')[1]
    (first, of_first), (second, of_second) = named.items()
    assert (of_first, of_second) == (second, first)
    assert first < second, "brokers begin as masters"
    assert broker["spec"]["replicas"] == replica["spec"]["replicas"]
    (rule,) = replica["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"].items() <= broker["spec"]["template"]["metadata"]["labels"].items()
    assert rule["matchLabelKeys"] == ["apps.kubernetes.io/pod-index"]
    (budget,) = (each for each in MANIFESTS.values() if each["kind"] == "PodDisruptionBudget" and "broker" in each["metadata"]["name"])
    names = [each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] for each in (broker, replica)]
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchExpressions": [{"key": "app.kubernetes.io/name", "operator": "In", "values": names}]},
    }


@pytest.mark.parametrize("components", [(), ("replica",), ("secure",), ("replica", "secure")], ids="-".join)
def test_kustomize_makes_the_same_manifests(components: tuple[str, ...], tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    base = os.path.relpath(KUBERNETES, tmp_path.resolve())
    listed = json.dumps([f"{base}/{each}" for each in components])
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{base}]\ncomponents: {listed}\n")
    done = subprocess.run([kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    made = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    expected = {(each["kind"], each["metadata"]["name"]): each for name, each in built(*components).items() if "worker" not in name}
    assert made == expected


def made_security(arguments: list[str]) -> set[str]:
    """Run `lockstep security init`. Return the names of the certificate."""
    command = [sys.executable, "-m", "lockstep.cli.main", *arguments, "--json"]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["names"])


def made_secrets(page: str, directory: Path) -> tuple[set[str], dict[str, dict[str, Path]]]:
    """Run the page's `lockstep security init`. Return the names of the certificate, and each secret that the page makes: key → file."""
    text = page.replace("\\\n", " ").replace("=security/", f"={directory}/").replace("init security ", f"init {directory} ")
    (command,) = re.findall(r"^    lockstep (security init .*)$", text, re.MULTILINE)
    secrets: dict[str, dict[str, Path]] = {}
    for secret, files in re.findall(r"^    kubectl -n messaging create secret generic (\S+) (.*)$", text, re.MULTILINE):
        given = [each.removeprefix("--from-file=").rpartition("=") for each in files.split()]
        secrets[secret] = {key or Path(path).name: Path(path) for key, _, path in given}
    names = made_security(command.split())
    assert all(path.exists() for files in secrets.values() for path in files.values())
    return names, secrets


def test_page_asks_cert_manager_for_the_names_that_its_command_has(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (certificate,) = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S) if "dnsNames" in block)
    names, secrets = made_secrets(page, tmp_path)
    assert set(certificate["spec"]["dnsNames"]) == names
    assert certificate["spec"]["secretName"] in secrets
    assert {f"lockstep-broker-{n}.lockstep-broker.messaging.svc" for n in range(2)} <= names, "what brokers advertise"
    assert all(f"`--name {each.replace('broker', 'replica')}`" in page for each in names if each.endswith("svc")), "and replicas"


@pytest.mark.parametrize("name", [*SERVERS, DASHBOARD])
def test_secure_pod_requires_tls_and_logins_with_the_files_that_the_page_makes(name: str, tmp_path: Path) -> None:
    names, secrets = made_secrets((ROOT / "docs" / "kubernetes.md").read_text(), tmp_path)
    manifest = built("replica", "secure")[name]
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    spec = manifest["spec"]["template"]["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == volume["name"])
    assert (mount["readOnly"], volume["projected"]["defaultMode"], spec["securityContext"]["fsGroup"]) == (True, 0o440, 10001)
    files = {key: path for source in volume["projected"]["sources"] for key, path in secrets[source["secret"]["name"]].items()}
    variables = {each["name"]: with_pod(each["value"]) for each in container["env"] if "value" in each}
    settings = effective([with_pod(each) for each in container["args"]], variables)
    used = {"tls_cert": "tls.crt", "tls_key": "tls.key"} if name == DASHBOARD else {"security": "users.toml", "tls_cert": "tls.crt"}
    assert all(settings[key].startswith(f'"{mount["mountPath"]}/{file}"') and file in files for key, file in used.items())
    assert settings["insecure"].startswith("false"), "a port that requires no login is refused"
    assert name == DASHBOARD or settings["admin_open"].startswith('"metrics"'), "Prometheus has no token"
    assert all(container[probe]["httpGet"]["scheme"] == "HTTPS" for probe in ("livenessProbe", "readinessProbe"))
    if "nameserver" in settings:
        given = [each["name"] for each in container["env"]]
        assert "POD_INDEX" not in given or given.index("POD_INDEX") < given.index("LOCKSTEP_NAMESERVER"), "Kubernetes expands in this order"
        url = variables["LOCKSTEP_NAMESERVER"]
        for key, path in files.items():
            url = url.replace(f"{mount['mountPath']}/{key}", str(path))
        address = ClusterAddress.parse(url)
        assert address.security().credentials is not None, "the files can be read"
        assert address.user == ("admin" if name == DASHBOARD else POD["$(POD_NAME)"])
        assert {each.partition(":")[0] for each in address.nameservers} <= names


def with_pod(text: str) -> str:
    for variable, value in POD.items():
        text = text.replace(variable, value)
    return text


class ComposeLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads compose files: a list with !override replaces the one of the file before."""


ComposeLoader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def secure_services() -> dict[str, dict[str, Any]]:
    """Return the services of docker-compose.yml with docker-compose.secure.yml, merged as compose does it, for what the latter has."""
    base, secure = (yaml.load((ROOT / f"docker-compose{each}.yml").read_text(), ComposeLoader) for each in ("", ".secure"))
    merged: dict[str, dict[str, Any]] = {}
    for name, changes in secure["services"].items():
        service = merged[name] = {**base["services"].get(name, {}), **changes}
        if name in base["services"]:
            service["environment"] = {**base["services"][name]["environment"], **changes["environment"]}
            service["volumes"] = [*base["services"][name].get("volumes", []), *changes["volumes"]]
    assert merged.keys() == {*base["services"], "security"}, "each service of the cluster is secured"
    return merged


def test_secure_composed_servers_require_tls_and_logins_with_the_files_that_are_made(tmp_path: Path) -> None:
    services = secure_services()
    made = services.pop("security")
    assert made["volumes"] == ["security:/security"]
    command = made["command"].replace("${LOCKSTEP_HOST:-127.0.0.1}", "192.0.2.1").replace("/security", str(tmp_path))
    names = made_security(command.split())
    load = services.pop("load")
    settings = {name: effective(service["command"].split(), service["environment"]) for name, service in services.items()}
    for name, service in (*services.items(), ("load", load)):
        assert service["depends_on"] == {"security": {"condition": "service_completed_successfully"}}
        assert "security:/security:ro" in service["volumes"]
        address = ClusterAddress.parse(service["environment"]["LOCKSTEP_NAMESERVER"].replace("/security", str(tmp_path)))
        assert address.security().credentials is not None, "the files can be read"
        assert address.user == (name.removesuffix("-replica") if name.startswith("broker") else "admin")
        assert {each.partition(":")[0] for each in address.nameservers} <= names
    for name, found in settings.items():
        has_users = name != "dashboard"
        for key, path in {"tls_cert": "server.pem", "tls_key": "server.key", **({"security": "users.toml"} if has_users else {})}.items():
            assert f'"/security/{path}"' in found[key]
            assert (tmp_path / path).exists()
        assert found["insecure"].startswith("false"), "a port that requires no login is refused"
        if name.startswith("broker"):
            assert name in names
            assert f"{name}:10911" in found["advertise"]
    assert all(each.startswith(("127.0.0.1:", "${LOCKSTEP_BIND:-127.0.0.1}:")) for one in services.values() for each in one["ports"])
    assert not any("5557" in each for one in services.values() for each in one["ports"]), "who is in the container needs no token"
    assert services["dashboard"]["ports"] == ["127.0.0.1:9880:9880"]


@pytest.mark.parametrize("name", SERVERS)
def test_pod_of_a_server_has_time_to_stop_and_probes_that_do_not_restart_it_for_a_full_disk(name: str) -> None:
    spec = pod(name)
    (container,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] * 1_000 > STOP_MS
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    service = MANIFESTS[name.replace("StatefulSet", "Service")]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert MANIFESTS[name]["spec"]["serviceName"] == MANIFESTS[name.replace("StatefulSet", "Service")]["metadata"]["name"]
    labels = MANIFESTS[name]["spec"]["template"]["metadata"]["labels"].items()
    budgets = [each["spec"]["selector"].get("matchLabels") for each in built().values() if each["kind"] == "PodDisruptionBudget"]
    for selector in (service["selector"], MANIFESTS[name]["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels
    assert name.startswith("replicas") or [each for each in budgets if each.items() <= labels]


def test_alerts_use_metrics_that_operations_md_lists() -> None:
    """tests/e2e/test_operations.py compares that list with what a broker exports."""
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = set(re.findall(r"`((?:rocketmq|lockstep)_\w+)`", page))
    (rules,) = documents(PROMETHEUS / "alerts.yaml")
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) == 19
    for alert in alerts:
        used = set(re.findall(r"\b((?:rocketmq|lockstep)_\w+)", alert["expr"]))
        assert {re.sub(r"_bucket$", "", name) for name in used} <= listed, alert["alert"]
        assert f"`{alert['alert']}`" in page
        assert {"summary", "description"} == set(alert["annotations"])


def test_alerts_fire_as_described() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it is part of Prometheus")
    for arguments in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")):
        done = subprocess.run([promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


GRAFANA = ROOT / "deploy" / "grafana"


def grafana_panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads((GRAFANA / "lockstep.json").read_text())["panels"]
    return panels


def test_grafana_dashboard_is_what_its_program_prints() -> None:
    made = subprocess.run([sys.executable, str(GRAFANA / "make_dashboard.py")], capture_output=True, text=True, check=True)
    assert made.stdout == (GRAFANA / "lockstep.json").read_text(), "run the program again"


def test_grafana_dashboard_shows_each_metric_that_the_page_recommends_and_no_unknown_one() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"`((?:rocketmq|lockstep)_\w+)`", page))
    shown = {name for panel in grafana_panels() for each in panel.get("targets", ()) for name in metrics_in(each["expr"])}
    known = {*documented, "rocketmq_storage_size", "rocketmq_storage_flush_behind_bytes", "lockstep_connections", "lockstep_held_pulls"}
    assert shown - known == {"process_cpu_seconds_total"}
    for alert in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| .*\*\*Alert", page, re.MULTILINE):
        named = set(re.findall(r"`(\w+)`", alert)) - {"lockstep_store_damaged_messages", "lockstep_store_damaged_bytes"}
        assert named <= shown, "the page says: alert on it"


def metrics_in(expression: str) -> set[str]:
    return {name.removesuffix("_bucket") for name in re.findall(r"\b((?:rocketmq|lockstep|process)_\w+)\{", expression)}


def test_grafana_panels_neither_overlap_nor_leave_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in grafana_panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in grafana_panels()}) == len(grafana_panels())


def test_grafana_expressions_are_promql(tmp_path: Path) -> None:
    """promtool has no command for an expression: each becomes a recording rule."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it is part of Prometheus")
    expressions = [each["expr"] for panel in grafana_panels() for each in panel.get("targets", ())]
    rules = [{"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "1m", each)} for number, each in enumerate(expressions)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def options_of(unit: Path) -> dict[str, list[str]]:
    """Return the settings of a unit's [Service] section."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_starts_a_server_with_options_that_it_accepts_and_leaves_it_time_to_stop(unit: Path) -> None:
    options = options_of(unit)
    (start,), (stop_s,) = options["ExecStart"], options["TimeoutStopSec"]
    assert int(stop_s) * 1_000 > STOP_MS
    command, *arguments = start.replace("%i", "broker-a").split()
    assert command == "/opt/lockstep/bin/lockstep"
    (given,) = options["Environment"]
    variables = dict(each.split("=", 1) for each in given.split())
    assert effective(arguments, variables)["listen"].startswith('["127.0.0.1:')
    assert list(options).index("Environment") < list(options).index("EnvironmentFile"), "the file takes precedence"
    named = "10.9.0.5:9876"
    assert named in effective(arguments, {**variables, "LOCKSTEP_LISTEN": named, "LOCKSTEP_INSECURE": "true"})["listen"], (
        "no option hides it"
    )


def test_unit_shows_two_machines_that_name_each_other() -> None:
    (unit,) = (unit for unit in UNITS if "broker" in unit.stem)
    shown = re.findall(r"^#   on (\S+)  LOCKSTEP_LISTEN=(\S+)  LOCKSTEP_REPLICA_OF=(\S+)$", unit.read_text(), re.MULTILINE)
    (first, listen, of_first), (second, other, of_second) = shown
    assert (of_first, of_second) == (other, listen)
    assert (listen.partition(":")[0], other.partition(":")[0]) == (first, second)
    (given,) = options_of(unit)["Environment"]
    variables = dict(each.split("=", 1) for each in given.split()) | {"LOCKSTEP_INSECURE": "true", "LOCKSTEP_REPLICA_OF": of_first}
    assert of_first in effective(["broker", "--name", "broker-a"], variables)["replica_of"]


def test_broker_that_needs_an_operator_is_not_started_again() -> None:
    """The exit codes of docs/operations.md."""
    (broker,) = (unit for unit in UNITS if "broker" in unit.stem)
    page = (ROOT / "docs" / "operations.md").read_text()
    codes = dict(re.findall(r"(\d) ([^,.]+)", page.split("Exit codes:")[1].split("SIGINT")[0]))
    prevented = options_of(broker)["RestartPreventExitStatus"][0].split()
    assert set(prevented) == set(codes) - {"0", "1", "3"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/lockstep/bin/lockstep", sys.executable).replace("User=lockstep", "User=root"))
    done = subprocess.run([analyze, "verify", str(here)], capture_output=True, text=True, timeout=60, check=False)
    assert not [line for line in done.stderr.splitlines() if unit.name in line], done.stderr
