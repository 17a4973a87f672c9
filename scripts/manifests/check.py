"""Renders the chart and checks the objects; `scripts/manifests-check` runs it.

The chart with its own values, with its value files, and with each of its parts alone:
- the schemas of Kubernetes, of Prometheus' operator, of KEDA, of HTTPRoute from its types in Rust, and of InferencePool from
  `inference_pool.py`, unknown fields refused; what --crds has, without its CEL rules, goes before them;
- values: every name of values.yaml is in values.schema.json, a misspelled one is refused, and so are values that contradict each other;
- files: alerts and dashboard are those of config/monitoring, in the folder and in the package that `helm package` makes;
- what holds between objects: selectors, ports, volumes, names, the time to drain, the restricted pod security standard;
- with --binary: settings are valid, probe paths answer, metrics exist.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error

import jsonschema
import kubernetes_validate
import yaml

import inference_pool
import rust_types

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHART = ROOT / "config/helm/perigee"
KUBERNETES = "1.37"
# Least seconds between the end of the drain and the kill.
DRAIN_MARGIN_S = 10
# Value files that are rendered together, and the values that add one part each.
TOGETHER = [[], ["gpu"], ["gpu", "fleet"], ["gpu", "public"], ["public"], ["gpu", "scale-to-zero"], ["gpu", "fetch"]]
PARTS = ["model.claim=perigee-model", "gpu.count=4", "gpu.count=1,gpu.cache.kind=claim", "gpu.count=1,gpu.cache.kind=image",
         "apiKeysSecret=perigee-api-keys", "adminKeySecret=perigee-admin-key", "tlsSecret=perigee-tls", "settings=[scheduler]",
         "usage.enabled=true", "usage.enabled=true,usage.claim=perigee-usage", "kvEvents=true", "monitoring.enabled=true",
         "monitoring.enabled=true,tlsSecret=perigee-tls,monitoring.keySecret=perigee-scrape-key", "monitoring.rules=true",
         "monitoring.dashboard=true", "networkPolicy.enabled=true", "service.shared=true", "service.type=LoadBalancer",
         "ingress.enabled=true", "autoscaling.enabled=true", "keda.enabled=true,keda.minReplicas=1", "gateway.enabled=true",
         "resources.cpuLimit=8", "image.digest=sha256:" + "0" * 64, "podLabels.team=a,podAnnotations.note=b,affinity.nodeAffinity=null",
         "extraEnv[0].name=TZ,extraEnv[0].value=UTC", "rollout.maxSurge=25%"]
# Value files that use all that the chart reads from files.
PACKED = ["gpu", "fleet"]
# Maps whose names are a site's own; `env` is checked by the server itself.
OPEN = {"env", "resources", "labels", "annotations", "dashboardLabels", "podAnnotations", "podLabels", "nodeSelector", "affinity"}
# Values that contradict each other, and a word of the reason that is given.
REFUSED = [("monitoring.enable=true", "'enable' not allowed"), ("rollout.maxSurge=0", "both 0"),
           ("gpu.count=1,rollout.maxUnavailable=0", "both 0"), ("gpu.count=9", "want 8"), ("env.server\\.idle_exit_s=60", "must be 0"),
           ("tlsSecret=perigee-tls,gateway.enabled=true", "speaks HTTP"), ("model.fetch.image=hf", "needs model.claim"),
           ("networkPolicy.enabled=true,env.telemetry\\.otlp_endpoint=http://collector:4318", "telemetry.otlp_endpoint needs a rule"),
           ("networkPolicy.enabled=true,model.claim=perigee-model,model.fetch.image=hf", "model.fetch needs a rule"),
           ("keda.enabled=true", "keda.demand"), ("keda.enabled=true,keda.minReplicas=1,autoscaling.enabled=true", "two autoscalers")]
# Custom resources, and the lists that are read here, for want of a schema.
CUSTOM = {("monitoring.coreos.com/v1", "PodMonitor"): ["podMetricsEndpoints"], ("monitoring.coreos.com/v1", "PrometheusRule"): ["groups"],
          ("keda.sh/v1alpha1", "ScaledObject"): ["triggers"],
          ("gateway.networking.k8s.io/v1", "HTTPRoute"): ["parentRefs", "rules"]}
# Objects that the manifests name and do not make.
EXTERNAL = {("PersistentVolumeClaim", "perigee-model"), ("PersistentVolumeClaim", "perigee-usage"), ("Secret", "perigee-api-keys"),
            ("Secret", "perigee-admin-key"), ("Secret", "perigee-tls"), ("Secret", "perigee-ingress-tls"), ("Secret", "perigee-scrape-key")}
API_KEY = "manifests-check"
MONITORING = ROOT / "config/monitoring"
# What config/monitoring filters by.
MONITORED_JOB = "perigee"


class Findings(dict):
    """What is wrong: object, field and reason, and the renderings that have it."""

    def add(self, source, item, field, reason):
        self.setdefault(f"{name_of(item)}: {field}: {reason}", []).append(source)

    def lines(self):
        for text, sources in self.items():
            more = len(set(sources)) - 1
            yield f"{sources[0]}{f' and {more} more' if more else ''}: {text}"


def name_of(item):
    if not item:
        return "-"
    return f"{item.get('kind')}/{item.get('metadata', {}).get('name')}"


def at(item, path, default=None):
    """The value at a dotted path of maps."""
    for key in path.split("."):
        if not isinstance(item, dict) or key not in item:
            return default
        item = item[key]
    return item


# ------------------------------------------------------------------------------------------------- rendering


def rendered(command, source, findings):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        findings.add(source, None, "rendering", done.stderr.strip() or f"exit code {done.returncode}")
        return None
    try:
        return [item for item in yaml.safe_load_all(done.stdout) if item]
    except yaml.YAMLError as error:
        findings.add(source, None, "rendering", str(error))
        return None


def chart(helm, files, parts, findings, folder=CHART):
    """What is rendered, and its objects."""
    values = [argument for name in files for argument in ("--values", str(CHART / "values" / f"{name}.yaml"))]
    values += [argument for part in parts for argument in ("--set", part)]
    source = "config/helm/perigee" + "".join(f" with {name}" for name in [*(f"values/{name}.yaml" for name in files), *parts])
    # The version is that of the cluster the chart is rendered for, which is none.
    command = [helm, "template", "perigee", str(folder), "--kube-version", KUBERNETES, *values]
    return source, rendered(command, source, findings)


def check_values(findings):
    """Whether the schema knows the names of values.yaml, and no others, at every level."""
    source = "config/helm/perigee/values.schema.json"
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    valid = jsonschema.Draft7Validator(schema)
    for error in valid.iter_errors(values):
        findings.add(source, None, ".".join(map(str, error.absolute_path)), error.message)

    def compare(names, properties, path):
        for name in names.keys() ^ properties.keys() - {"global"}:
            findings.add(source, None, f"{path}{name}", "is in values.yaml or in values.schema.json, and not in both")
        for name in names.keys() & properties.keys():
            of = properties[name]
            if "properties" in of and of.get("additionalProperties") is False:
                compare(names[name], of["properties"], f"{path}{name}.")
            elif isinstance(names[name], dict) and name not in OPEN:
                findings.add(source, None, f"{path}{name}", "takes names that nothing reads")

    compare(values, schema["properties"], "")


def check_refusals(helm, findings):
    """Whether values that cannot be meant are refused, with the reason."""
    for values, reason in REFUSED:
        done = subprocess.run([helm, "template", "perigee", str(CHART), "--set", values], capture_output=True, text=True)
        if done.returncode == 0 or reason not in done.stderr:
            findings.add(f"config/helm/perigee with {values}", None, "values", f"not refused with \"{reason}\": {done.stderr.strip()[-200:]}")


def check_package(helm, items, findings):
    """Whether the package has what the folder has: files that lead out of it are read through links."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([helm, "package", str(CHART), "--destination", folder], capture_output=True, check=True)
        package = next(pathlib.Path(folder).glob("*.tgz"))
        source, packed = chart(helm, PACKED, [], findings, package)
    if packed != items:
        findings.add(source, None, "helm package", "the package renders other objects than the folder")


# --------------------------------------------------------------------------------------------------- schemas


def closed(schema):
    """A definition's schema for jsonschema: unknown fields are refused, as nothing else says that they are dropped."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        result["type"] = [schema["type"], "null"]
    return result


def definitions(folder):
    """(apiVersion, kind): schema, and the release it is of."""
    result = {}
    for file in sorted(pathlib.Path(folder).glob("*.y*ml")):
        for item in yaml.safe_load_all(file.read_text()):
            # `kubectl get` writes a list.
            for crd in (item or {}).get("items", [item]):
                if not crd or crd.get("kind") != "CustomResourceDefinition":
                    continue
                notes = at(crd, "metadata.annotations", {})
                release = next((v for k, v in notes.items() if k.endswith(("bundle-version", "operator.prometheus.io/version"))), "?")
                for version in crd["spec"]["versions"]:
                    schema = closed(version["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {"type": "object"}
                    key = (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"])
                    result[key] = (schema, release)
    return result


def resource(spec):
    """The schema of a custom resource with this spec. No manifest has a status."""
    return {"type": "object", "properties": {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}, "spec": spec},
            "required": ["spec"], "additionalProperties": False}


def known(gateway):
    """The definitions at hand, as `definitions` does. `gateway`: the folder of the crate gateway-api, if it is there."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

    result = {("inference.networking.k8s.io/v1", "InferencePool"): (resource(inference_pool.SPEC), inference_pool.RELEASE)}
    for group, package, models in (("monitoring.coreos.com/v1", "prometheus-operator", (PodMonitor, PrometheusRule)),
                                   ("keda.sh/v1alpha1", "keda", (ScaledObject,))):
        # The models' fourth number is their own.
        release = importlib.metadata.version(f"cloudcoil-models-{package}").rsplit(".", 1)[0]
        for model in models:
            schema = closed(model.model_json_schema())
            schema["properties"]["metadata"] = {"type": "object"}
            result[group, model.__name__] = (schema, release)
    if gateway:
        source = (gateway / "src/apis/standard/httproutes.rs").read_text()
        schema = resource(rust_types.schema(source, "HttpRouteSpec"))
        release = re.search(r"Gateway API version (v[0-9.]*[0-9])", (gateway / "README.md").read_text())
        result["gateway.networking.k8s.io/v1", "HTTPRoute"] = (schema, release[1] if release else "?")
    return result


def check_schema(source, item, crds, used, findings):
    """Whether the object is what its schema says, as far as there is one."""
    if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("apiVersion", "kind")):
        findings.add(source, item if isinstance(item, dict) else None, "apiVersion", "no object of Kubernetes")
        return False
    key = (item["apiVersion"], item["kind"])
    if key in crds:
        schema, release = crds[key]
        used.setdefault(f"{item['kind']} of {release}", set()).add(item["kind"])
        errors = list(jsonschema.Draft202012Validator(schema).iter_errors(item))
    elif key in CUSTOM:
        used.setdefault("no schema", set()).add(item["kind"])
        missing = [field for field in CUSTOM[key] if not isinstance(at(item, f"spec.{field}"), list)]
        for field in missing:
            findings.add(source, item, f"spec.{field}", "no list")
        return not missing
    else:
        used.setdefault(f"Kubernetes {KUBERNETES}", set()).add(item["kind"])
        try:
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
            errors = []
        except kubernetes_validate.ValidationError as error:
            errors = [error]
        except kubernetes_validate.SchemaNotFoundError as error:
            findings.add(source, item, "apiVersion", error.message)
            return False
    for error in errors:
        findings.add(source, item, ".".join(map(str, error.absolute_path)) or "-", error.message)
    return not errors


# --------------------------------------------------------------------------------------------------- objects


class Release:
    """The objects of one rendering, which belong to one Deployment with one container."""

    def __init__(self, source, items, findings):
        self.source, self.items, self.findings = source, items, findings
        self.deployment = self.one("Deployment")
        self.pod = at(self.deployment, "spec.template.spec", {})
        self.container = (self.pod.get("containers") or [{}])[0]
        self.containers = [self.container, *self.pod.get("initContainers", [])]
        self.labels = at(self.deployment, "spec.template.metadata.labels", {})
        self.env = {entry["name"]: entry for entry in self.container.get("env", [])}
        self.ports = {port.get("name"): port["containerPort"] for port in self.container.get("ports", [])}

    def all(self, kind):
        return [item for item in self.items if item["kind"] == kind]

    def one(self, kind):
        found = self.all(kind)
        if len(found) != 1:
            self.findings.add(self.source, None, kind, f"{len(found)} objects, not one")
        return found[0] if found else {}

    def wrong(self, item, field, reason):
        self.findings.add(self.source, item, field, reason)

    def has(self, kind, name):
        return (kind, name) in EXTERNAL or any(item["metadata"]["name"] == name for item in self.all(kind))

    def setting(self, settings, key, default):
        """The value of a setting: the binary's, or else the variable's."""
        if settings is not None:
            return settings[key]["value"]
        variable = "PERIGEE_" + key.replace(".", "__").upper()
        return float(self.env.get(variable, {}).get("value", default))

    def check_selectors(self):
        paths = {"Deployment": "spec.selector.matchLabels", "Service": "spec.selector", "PodDisruptionBudget": "spec.selector.matchLabels",
                 "NetworkPolicy": "spec.podSelector.matchLabels", "PodMonitor": "spec.selector.matchLabels",
                 "InferencePool": "spec.selector.matchLabels"}
        for item in self.items:
            if path := paths.get(item["kind"]):
                self.check_selector(item, path, at(item, path))
            if not at(item, "metadata.labels"):
                self.wrong(item, "metadata.labels", "no labels")
        for item in self.all("PodMonitor"):
            label = at(item, "spec.jobLabel")
            if self.labels.get(label) != MONITORED_JOB:
                self.wrong(item, "spec.jobLabel", f"{label}: the pods' job is {self.labels.get(label)}, and alerts ask for {MONITORED_JOB}")
        for index, spread in enumerate(self.pod.get("topologySpreadConstraints", [])):
            field = f"spec.template.spec.topologySpreadConstraints.{index}.labelSelector.matchLabels"
            self.check_selector(self.deployment, field, at(spread, "labelSelector.matchLabels"))

    def check_selector(self, item, field, selector):
        if not selector:
            self.wrong(item, field, "selects nothing, or everything")
        for key, value in (selector or {}).items():
            if self.labels.get(key) != value:
                self.wrong(item, field, f"{key}={value}, and the pods have {key}={self.labels.get(key)}")

    def check_ports(self):
        def check(item, field, port):
            if port not in self.ports and port not in self.ports.values():
                self.wrong(item, field, f"{port} is no port of the container: {self.ports}")

        for item in self.all("Service"):
            for port in item["spec"]["ports"]:
                check(item, "spec.ports.targetPort", port.get("targetPort", port["port"]))
                if port.get("appProtocol") != self.scheme():
                    self.wrong(item, "spec.ports.appProtocol", f"{port.get('appProtocol')}, and the server speaks {self.scheme()}")
        for item in self.all("Ingress"):
            for path in [path for rule in item["spec"]["rules"] for path in rule["http"]["paths"]]:
                service = at(path, "backend.service", {})
                ports = [port["name"] for found in self.all("Service") if found["metadata"]["name"] == service.get("name")
                         for port in found["spec"]["ports"]]
                if at(service, "port.name") not in ports:
                    self.wrong(item, "spec.rules.http.paths.backend", f"there is no port {at(service, 'port.name')} of a Service {service.get('name')}")
        for item in self.all("PodMonitor"):
            for endpoint in item["spec"]["podMetricsEndpoints"]:
                check(item, "spec.podMetricsEndpoints.port", endpoint.get("port"))
                if endpoint.get("scheme", "http") != self.scheme():
                    self.wrong(item, "spec.podMetricsEndpoints.scheme", f"{endpoint.get('scheme')}, and the server speaks {self.scheme()}")
        for item in self.all("InferencePool"):
            for port in item["spec"]["targetPorts"]:
                check(item, "spec.targetPorts", port["number"])
        for name, probe in self.probes():
            check(self.deployment, f"{name}.httpGet.port", at(probe, "httpGet.port"))
            if at(probe, "httpGet.scheme", "HTTP") != self.scheme().upper():
                self.wrong(self.deployment, f"{name}.httpGet.scheme", f"is not that of the server, {self.scheme()}")
        for name, entry in self.env.items():
            if tcp := re.fullmatch(r"tcp://.*:(\d+)", entry.get("value", "")):
                check(self.deployment, name, int(tcp[1]))
        for item in self.all("NetworkPolicy"):
            open_ports = {port["port"] for rule in item["spec"].get("ingress", []) for port in rule.get("ports", [])}
            for name, port in self.ports.items():
                if port not in open_ports and name not in open_ports:
                    self.wrong(item, "spec.ingress", f"port {name} ({port}) of the container is closed")

    def scheme(self):
        return "https" if "PERIGEE_SERVER__TLS_CERTIFICATE" in self.env else "http"

    def probes(self):
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe := self.container.get(name):
                yield name, probe
            else:
                self.wrong(self.deployment, name, "missing")

    def check_names(self):
        volumes = {volume["name"]: volume for volume in self.pod.get("volumes", [])}
        mounted = {mount["name"]: mount for container in reversed(self.containers) for mount in container.get("volumeMounts", [])}
        for name in volumes.keys() ^ mounted.keys():
            self.wrong(self.deployment, "volumes", f"{name} is {'not mounted' if name in volumes else 'mounted and not there'}")
        for name, volume in volumes.items():
            for kind, path in (("PersistentVolumeClaim", "persistentVolumeClaim.claimName"), ("Secret", "secret.secretName"), ("ConfigMap", "configMap.name")):
                if (target := at(volume, path)) and not self.has(kind, target):
                    self.wrong(self.deployment, f"volumes.{name}", f"there is no {kind} {target}")
        if "/tmp" not in {mount["mountPath"] for mount in self.container.get("volumeMounts", [])}:
            self.wrong(self.deployment, "volumeMounts", "nothing at /tmp, and the root is read-only")
        if not self.has("ServiceAccount", account := self.pod.get("serviceAccountName")):
            self.wrong(self.deployment, "serviceAccountName", f"there is no ServiceAccount {account}")
        known = set()
        for name, entry in self.env.items():
            for other in re.findall(r"\$\((\w+)\)", entry.get("value", "")):
                if other not in known:
                    self.wrong(self.deployment, f"env.{name}", f"$({other}) is no variable before it, and stays as it is")
            known.add(name)
        autoscalers = self.all("HorizontalPodAutoscaler") + self.all("ScaledObject")
        for item in autoscalers:
            target = {"kind": "Deployment"} | item["spec"]["scaleTargetRef"]
            if not self.has(target["kind"], target["name"]):
                self.wrong(item, "spec.scaleTargetRef", f"there is no {target['kind']} {target['name']}")
            if at(self.deployment, "spec.replicas") is not None:
                self.wrong(self.deployment, "spec.replicas", "each apply takes the number from the autoscaler")
        if not autoscalers and at(self.deployment, "spec.replicas") is None:
            self.wrong(self.deployment, "spec.replicas", "missing, which is 1")
        for item in self.all("HTTPRoute"):
            for rule in item["spec"]["rules"]:
                for backend in rule.get("backendRefs", []):
                    if not self.has(backend.get("kind", "Service"), backend["name"]):
                        self.wrong(item, "spec.rules.backendRefs", f"there is no {backend.get('kind', 'Service')} {backend['name']}")

    def check_rollout(self):
        """A pod of a cluster that owns exactly its GPUs has to end before its successor can start."""
        limits = at(self.container, "resources.limits", {})
        rolling = at(self.deployment, "spec.strategy.rollingUpdate", {})
        asked = "rollout." in self.source or "scale-to-zero" in self.source
        expected = {"maxSurge": 0, "maxUnavailable": 1} if "nvidia.com/gpu" in limits else {"maxSurge": 1, "maxUnavailable": 0}
        if not asked and rolling != expected:
            self.wrong(self.deployment, "spec.strategy.rollingUpdate", f"{rolling}, not {expected}")

    def check_files(self):
        """Alerts and dashboard are those of config/monitoring, but for the address of the page of alerts."""
        groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
        for item in self.all("PrometheusRule"):
            places = {at(rule, "annotations.runbook_url", "#").split("#")[0] for group in item["spec"]["groups"] for rule in group["rules"]}
            place = (places - {""}).pop() if len(places - {""}) == 1 else None
            text = json.dumps(groups).replace('"docs/alerts.md#', f'"{place}#')
            if place is None or item["spec"]["groups"] != json.loads(text):
                self.wrong(item, "spec.groups", "are not those of config/monitoring/alerts.yml")
        for item in self.all("ConfigMap"):
            board = item["data"].get("perigee.json")
            place = re.search(r'"query": "([^"]*alerts[^"]*)"', board)[1] if board else ""
            if board is not None and board != (MONITORING / "grafana/dashboards/perigee.json").read_text().replace('"docs/alerts.md"', f'"{place}"'):
                self.wrong(item, "data", "is not the dashboard of config/monitoring")

    def check_times(self, settings):
        pre_stop = at(self.container, "lifecycle.preStop.sleep.seconds", 0)
        delay = self.setting(settings, "server.drain_delay_s", 0)
        timeout = self.setting(settings, "server.drain_timeout_s", 30)
        grace = self.pod.get("terminationGracePeriodSeconds", 30)
        if grace < pre_stop + delay + timeout + DRAIN_MARGIN_S:
            self.wrong(self.deployment, "terminationGracePeriodSeconds",
                       f"{grace} is less than preStop {pre_stop:g} + drain_delay_s {delay:g} + drain_timeout_s {timeout:g} + {DRAIN_MARGIN_S}")
        if pre_stop + delay < 5:
            self.wrong(self.deployment, "PERIGEE_SERVER__DRAIN_DELAY_S", f"{pre_stop + delay:g} s are too short for endpoint lists to learn")
        startup = self.container.get("startupProbe", {})
        loading = startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3)
        if (deadline := at(self.deployment, "spec.progressDeadlineSeconds", 600)) <= loading:
            self.wrong(self.deployment, "spec.progressDeadlineSeconds", f"{deadline} is not above the startup probe's {loading}")
        request = self.setting(settings, "server.request_timeout_s", 600)
        if timeout < request:
            self.wrong(self.deployment, "PERIGEE_SERVER__DRAIN_TIMEOUT_S", f"{timeout:g} is less than server.request_timeout_s {request:g}: a rollout cuts answers")
        for item in self.all("HTTPRoute"):
            for rule in item["spec"]["rules"]:
                limit = at(rule, "timeouts.request", "0s")
                seconds = int(limit[:-1]) if re.fullmatch(r"\d+s", limit) else None
                if seconds is None or 0 < seconds <= request:
                    self.wrong(item, "spec.rules.timeouts.request", f"{limit} is not above server.request_timeout_s {request:g}")

    def check_security(self):
        restricted = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
        for key, value in restricted.items():
            if at(self.pod, f"securityContext.{key}") != value:
                self.wrong(self.deployment, f"securityContext.{key}", f"is not {value}")
        for key, value in {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}.items():
            for container in self.containers:
                if at(container, f"securityContext.{key}") != value:
                    self.wrong(self.deployment, f"{container.get('name')}.securityContext.{key}", f"is not {value}")
        for key in ("automountServiceAccountToken", "enableServiceLinks"):
            if self.pod.get(key) is not False:
                self.wrong(self.deployment, key, "is not false")
        for mount in self.container.get("volumeMounts", []):
            volume = next((v for v in self.pod.get("volumes", []) if v["name"] == mount["name"]), {})
            claim = at(volume, "persistentVolumeClaim.claimName", "")
            if not mount.get("readOnly") and ("secret" in volume or "configMap" in volume or claim == "perigee-model"):
                self.wrong(self.deployment, f"volumeMounts.{mount['name']}", "is not read-only")

    # ------------------------------------------------------------------------------------------ with a binary

    def environment(self, folder):
        """The container's variables, with files of mounted Secrets and ConfigMaps made in `folder`."""
        volumes = {volume["name"]: volume for volume in self.pod.get("volumes", [])}
        places = {}
        for mount in self.container.get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            files = {}
            if "secret" in volume:
                files = {"api-keys": API_KEY + "\n", "admin-key": API_KEY + "-admin\n"}
                files = {name: files[name] for name in files if name == mount["name"]}
            elif name := at(volume, "configMap.name"):
                files = next((item.get("data", {}) for item in self.all("ConfigMap") if item["metadata"]["name"] == name), {})
            for file, text in files.items():
                path = folder / mount["name"] / file
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
                places[f"{mount['mountPath']}/{file}"] = str(path)
        values = {}
        for name, entry in self.env.items():
            asked = at(self.container, f"resources.{at(entry, 'valueFrom.resourceFieldRef.resource', '-')}", "pod")
            value = entry.get("value", asked)
            values[name] = re.sub(r"\$\((\w+)\)", lambda other: values.get(other[1], other[0]), value)
        return {name: places.get(value, value) for name, value in values.items()}

    def check_settings(self, binary):
        """Whether the variables are valid settings; what they amount to."""
        with tempfile.TemporaryDirectory() as folder:
            shell = {name: value for name, value in os.environ.items() if not name.startswith("PERIGEE_")}
            # The Dockerfile's own.
            shell |= {"PERIGEE_SERVER__HOST": "0.0.0.0"}
            env = shell | self.environment(pathlib.Path(folder))

            def run(*arguments):
                return subprocess.run([binary, "config", *arguments], env=env, cwd=ROOT, capture_output=True, text=True)

            # What this machine lacks is not what the pod lacks.
            done = run("check", "--settings-only")
            if done.returncode != 0:
                self.wrong(self.deployment, "env", " ".join(done.stderr.split()))
                return None
            return json.loads(run("show", "--json").stdout)["settings"]

    def check_running(self, server, metrics, settings):
        probes = [(self.deployment, f"{name}.httpGet.path", at(probe, "httpGet.path")) for name, probe in self.probes()]
        scrapes = [(item, "spec.podMetricsEndpoints.path", endpoint.get("path", "/metrics"))
                   for item in self.all("PodMonitor") for endpoint in item["spec"]["podMetricsEndpoints"]]
        for item, field, path in probes + scrapes:
            try:
                server.get(path)
            except (urllib.error.HTTPError, TypeError) as error:
                self.wrong(item, field, f"{path} is answered {getattr(error, 'code', error)}")
        for item in self.all("HorizontalPodAutoscaler"):
            for metric in item["spec"]["metrics"]:
                name = at(metric, "pods.metric.name")
                if f"# TYPE {name} gauge" not in metrics:
                    self.wrong(item, "spec.metrics.pods.metric.name", f"{name} is no gauge of /metrics")
        for item in self.all("ScaledObject"):
            for trigger in item["spec"]["triggers"]:
                for name in re.findall(r"perigee_\w+", trigger["metadata"]["query"]):
                    if f"# TYPE {name} gauge" not in metrics:
                        self.wrong(item, f"spec.triggers.{trigger['name']}", f"{name} is no gauge of /metrics")
        if settings is not None and settings["server.port"]["value"] != self.ports.get("http"):
            self.wrong(self.deployment, "ports.http", f"is not server.port {settings['server.port']['value']}")


def main():
    options = argparse.ArgumentParser(prog="manifests-check")
    options.add_argument("--helm", required=True, help=argparse.SUPPRESS)
    options.add_argument("--gateway", type=pathlib.Path, help=argparse.SUPPRESS)
    options.add_argument("--binary", type=pathlib.Path, help="perigee, for settings, probe paths and metrics")
    options.add_argument("--crds", help="folder of custom resource definitions")
    parser, options = options, options.parse_args()
    if options.binary and not os.access(options.binary, os.X_OK):
        parser.error(f"{options.binary} is no program")

    findings, used = Findings(), {}
    crds = known(options.gateway) | (definitions(options.crds) if options.crds else {})
    renderings = {}
    for files, parts in [(files, []) for files in TOGETHER] + [([], [part]) for part in PARTS]:
        source, items = chart(options.helm, files, parts, findings)
        if items is not None:
            renderings[source] = items
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for key in ("version", "appVersion"):
        if about[key] != version:
            findings.add("config/helm/perigee/Chart.yaml", None, key, f"{about[key]}, and Cargo.toml has {version}")

    check_values(findings)
    check_refusals(options.helm, findings)
    check_package(options.helm, renderings.get(f"config/helm/perigee with {' with '.join(f'values/{name}.yaml' for name in PACKED)}"), findings)

    server = metrics = None
    if options.binary:
        sys.path.insert(0, str(HERE.parent))
        from server import Server
        server = Server(options.binary.resolve())
        metrics = server.get("/metrics")
    try:
        for source, items in renderings.items():
            if not all([check_schema(source, item, crds, used, findings) for item in items]):
                # Objects of another shape are not looked into.
                continue
            release = Release(source, items, findings)
            settings = release.check_settings(options.binary.resolve()) if options.binary else None
            release.check_selectors()
            release.check_ports()
            release.check_names()
            release.check_rollout()
            release.check_files()
            release.check_times(settings)
            release.check_security()
            if server:
                release.check_running(server, metrics, settings)
    finally:
        if server:
            server.stop()

    for line in findings.lines():
        print(line)
    without = used.pop("no schema", None)
    for schema, kinds in sorted(used.items()):
        print(f"validated by {schema}: {', '.join(sorted(kinds))}")
    if without:
        print(f"not validated by a schema, for want of --crds: {', '.join(sorted(without))}")
    if not options.binary:
        print("settings, probe paths and metrics not checked: no --binary")
    objects = sum(len(items) for items in renderings.values())
    if findings:
        print(f"manifests check FAILED: {len(findings)} findings in {len(renderings)} renderings, {objects} objects")
        return 1
    print(f"manifests check passed: {len(renderings)} renderings, {objects} objects, {len(REFUSED)} refusals")
    return 0


if __name__ == "__main__":
    sys.exit(main())
