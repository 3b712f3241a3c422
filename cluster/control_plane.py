"""etcd, API server, controller manager and scheduler of a cluster: the API server at the address of its Service, the others on
loopback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cluster.binaries import Binaries
from cluster.client import ApiClient, answers
from cluster.errors import ClusterError
from cluster.pki import Pki
from cluster.record import ClusterRecord, port_is_free
from cluster.units import Cgroup, Unit
from cluster.waiting import wait_for

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_ETCD, _ETCD_PEER, _CONTROLLERS, _SCHEDULER = range(1, 5)
_HTTPS = 443


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The control plane in a cluster's folder."""

    folder: Path
    record: ClusterRecord
    binaries: Binaries

    @property
    def pki(self) -> Pki:
        return Pki(self.folder / "pki")

    @property
    def admin_kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def api(self) -> ApiClient:
        return ApiClient(self.record.server, self.pki, "admin")

    def unit(self, component: str) -> Unit:
        if component not in COMPONENTS:
            raise ClusterError(f"{component} is no part of the control plane: {', '.join(COMPONENTS)}")
        return Unit(component, self.folder / "control", Cgroup(f"{self.record.cgroup}/control"))

    def account_kubeconfig(self, namespace: str, account: str, node: str = "") -> Path:
        """A kubeconfig with the rights of a service account alone, as a pod of that account has them on `node` if one is named.

        Raises:
            ClusterError: there is no such account or node.
        """
        api = self.api()
        spec: dict[str, object] = {"expirationSeconds": 86400}
        if node:
            uid = api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        token = api.request("POST", path, {"spec": spec})["status"]["token"]
        name = "-".join(word for word in ("account", namespace, account, node) if word)
        file = self.folder / "pki" / f"{name}.kubeconfig"
        self.pki.write_kubeconfig(file, {"token": token}, self.record.server)
        return file

    def create_certificates(self) -> None:
        pki = self.pki
        pki.create_authority()
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        addresses = (self.record.service_address, self.record.node_address)
        pki.issue_server("apiserver", [*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])
        pki.issue_client("admin", "admin", "system:masters")
        pki.issue_client("apiserver-kubelet", "apiserver-kubelet", "system:masters")
        for component in ("kube-controller-manager", "kube-scheduler"):
            pki.issue_client(component, f"system:{component}")
            pki.write_kubeconfig(self._kubeconfig(component), pki.user(component), self.record.server)
        pki.write_kubeconfig(self.admin_kubeconfig, pki.user("admin"), self.record.server)

    def start(self) -> None:
        """Start what does not run, and wait until everything answers.

        Raises:
            ClusterError: a component does not answer; its last output is in the message.
        """
        for component in COMPONENTS:
            self.start_component(component)

    def start_component(self, component: str) -> None:
        """Start one component unless it runs, and wait until it answers."""
        unit = self.unit(component)
        url = self._health(component)
        if unit.pid is None:
            unit.cgroup.create()
            # The kernel takes a moment to close the sockets of a process that was killed.
            place = urlsplit(url)
            wait_for(
                f"{place.netloc}, where {component} listens, is free",
                lambda: port_is_free(place.port or _HTTPS, place.hostname or ""),
            )
            unit.start(self._command(component))
        wait_for(f"{component} answers", lambda: answers(url), explain=unit.log_end)

    def _health(self, component: str) -> str:
        port = self.record.port
        return {
            "etcd": f"http://127.0.0.1:{port(_ETCD)}/health",
            "kube-apiserver": f"{self.record.server}/readyz",
            "kube-controller-manager": f"https://127.0.0.1:{port(_CONTROLLERS)}/healthz",
            "kube-scheduler": f"https://127.0.0.1:{port(_SCHEDULER)}/healthz",
        }[component]

    def _kubeconfig(self, component: str) -> Path:
        return self.folder / "pki" / f"{component}.kubeconfig"

    def _command(self, component: str) -> list[str]:
        options = {
            "etcd": self._etcd_options,
            "kube-apiserver": self._api_server_options,
            "kube-controller-manager": self._controller_manager_options,
            "kube-scheduler": self._scheduler_options,
        }[component]()
        if self.record.emulates and component != "etcd":
            options |= {"emulated-version": self.record.emulates}
        if self.record.gates and component != "etcd":
            options |= {"feature-gates": ",".join(f"{gate}=true" for gate in self.record.gates)}
        if self.record.gates and component == "kube-apiserver":
            options |= {"runtime-config": "api/alpha=true"}
        return [self.binaries[component], *(f"--{name}={value}" for name, value in options.items())]

    def _etcd_options(self) -> dict[str, object]:
        client = f"http://127.0.0.1:{self.record.port(_ETCD)}"
        peer = f"http://127.0.0.1:{self.record.port(_ETCD_PEER)}"
        return {
            "name": "etcd",
            "data-dir": self.folder / "control" / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"etcd={peer}",
            # A killed process loses nothing by it, only a machine that loses power would.
            "unsafe-no-fsync": "true",
        }

    def _api_server_options(self) -> dict[str, object]:
        pki = self.pki
        return {
            "etcd-servers": f"http://127.0.0.1:{self.record.port(_ETCD)}",
            "bind-address": self.record.service_address,
            "advertise-address": self.record.service_address,
            "secure-port": _HTTPS,
            "cert-dir": self.folder / "control" / "apiserver",
            "tls-cert-file": pki.certificate("apiserver"),
            "tls-private-key-file": pki.key("apiserver"),
            "client-ca-file": pki.authority,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki.folder / "service-accounts.pub",
            "service-account-signing-key-file": pki.key("service-accounts"),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "service-cluster-ip-range": self.record.services,
            "allow-privileged": "true",
            "kubelet-client-certificate": pki.certificate("apiserver-kubelet"),
            "kubelet-client-key": pki.key("apiserver-kubelet"),
            "kubelet-preferred-address-types": "InternalIP",
            "endpoint-reconciler-type": "none",
            # Without a kube-proxy, a webhook's Service leads nowhere: the API server asks its pods themselves.
            "enable-aggregator-routing": "true",
            # A test that kills the API server starts it again at once.
            "shutdown-delay-duration": "0s",
        }

    def _controller_manager_options(self) -> dict[str, object]:
        return {
            **self._client_options("kube-controller-manager", _CONTROLLERS),
            "service-account-private-key-file": self.pki.key("service-accounts"),
            "root-ca-file": self.pki.authority,
            "use-service-account-credentials": "true",
            "cluster-signing-cert-file": self.pki.authority,
            "cluster-signing-key-file": self.pki.key("ca"),
            # Its default, 20 requests a second for each controller, is what tests of many pods would wait for.
            "kube-api-qps": 200,
            "kube-api-burst": 400,
        }

    def _scheduler_options(self) -> dict[str, object]:
        return self._client_options("kube-scheduler", _SCHEDULER)

    def _client_options(self, component: str, port: int) -> dict[str, object]:
        kubeconfig = self._kubeconfig(component)
        return {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": "127.0.0.1",
            "secure-port": self.record.port(port),
            "cert-dir": self.folder / "control" / component,
            "leader-elect": "false",
        }
