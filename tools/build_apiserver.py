"""Build kube-apiserver for `make test-apiserver`, where no registry has one: from Debian's source package, once.

    python -m tools.build_apiserver

Needs apt-get of Debian 12, dpkg-dev, make and a C compiler; nothing is installed. Sources, Go and the programs go to
~/.cache/weft/apiserver (or XDG_CACHE_HOME): some 2 GB while it builds, ten minutes of a processor. etcd is Debian's.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.cached import HOME, run, unpack_debs

CACHE = HOME / "weft" / "apiserver"
APISERVER = CACHE / "kube-apiserver"
ETCD = CACHE / "etcd"
VERSION = "v1.20.2"
SUITE = "bookworm"
GO = "1.19"
PACKAGES = (
    *(f"golang-{GO}-go", f"golang-{GO}-src"),
    *("golang-github-modern-go-reflect2-dev", "rsync", "libpopt0"),
)
REFLECT2 = Path("github.com") / "modern-go" / "reflect2"


def unpacked(name: str, *packages: str) -> Path:
    """Debian's packages, unpacked and not installed."""
    root = CACHE / name
    if not root.exists():
        parts = root.with_name(f"{name}.parts")
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir(parents=True)
        run("apt-get", "download", *packages, cwd=parts)
        unpack_debs(parts)
        parts.rename(root)
    return root


def mirror() -> str:
    """Where this machine has the suite's packages from."""
    targets = ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)"]
    shown = subprocess.run(targets, capture_output=True, text=True, check=True).stdout
    for line in shown.splitlines():
        name, component, uri = line.split(maxsplit=2)
        if (name, component) == (SUITE, "main"):
            return uri
    sys.exit(f"apt-get knows no mirror of {SUITE}: it is made for Debian 12")


def source() -> Path:
    """Debian's source package, with its patches, by lists of our own."""
    root = CACHE / "source"
    lists = root / "lists"
    tree = root / "kubernetes"
    if not tree.exists():
        shutil.rmtree(root, ignore_errors=True)
        (lists / "partial").mkdir(parents=True)
        (root / "sources.list").write_text(f"deb-src {mirror()} {SUITE} main\n", encoding="ascii")
        own = {
            "Dir::Etc::sourcelist": root / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": lists,
            "APT::Get::List-Cleanup": "0",
        }
        options = [word for name, value in own.items() for word in ("-o", f"{name}={value}")]
        run("apt-get", *options, "update", cwd=root)
        run("apt-get", *options, "source", "--only-source", "kubernetes", cwd=root)
        (found,) = root.glob("kubernetes-*/")
        found.rename(tree)
    return tree


def mend_reflect2(tree: Path, packages: Path) -> None:
    """The vendored release of reflect2 reads maps as Go had them before 1.18."""
    vendored = tree / "vendor" / REFLECT2
    for old in (*vendored.glob("*.go"), *vendored.glob("*.s")):
        old.unlink()
    newer = packages / "usr" / "share" / "gocode" / "src" / REFLECT2
    for new in (*newer.glob("*.go"), *newer.glob("*.s")):
        if not new.name.endswith("_test.go"):
            shutil.copy(new, vendored)


def build_apiserver() -> None:
    """By Kubernetes' own make, one package at a time, and behind all other work."""
    packages = unpacked("go", *PACKAGES)
    tree = source()
    mend_reflect2(tree, packages)
    go_root = packages / "usr" / "lib" / f"go-{GO}"
    run(
        *("nice", "-n", "19", "make", "WHAT=cmd/kube-apiserver"),
        cwd=tree,
        PATH=os.pathsep.join(
            (str(go_root / "bin"), str(packages / "usr" / "bin"), os.environ["PATH"])
        ),
        LD_LIBRARY_PATH=str(next(packages.rglob("libpopt.so.0")).parent),  # of rsync
        GOROOT=str(go_root),
        GOPROXY="off",
        GOFLAGS="-p=1",
        GOMAXPROCS="1",
        KUBE_GIT_COMMIT="0" * 40,
        KUBE_GIT_TREE_STATE="clean",
        KUBE_GIT_VERSION=VERSION,
        KUBE_GIT_MAJOR="1",
        KUBE_GIT_MINOR="20",
        MAKEFLAGS="",
    )
    shutil.copy(tree / "_output" / "bin" / "kube-apiserver", APISERVER.with_suffix(".new"))
    APISERVER.with_suffix(".new").rename(APISERVER)
    for done in ("go", "source"):
        shutil.rmtree(CACHE / done)


def main() -> int:
    """Both programs, unless they are there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not ETCD.exists():
        found = unpacked("debian", "etcd-server") / "usr" / "bin" / "etcd"
        shutil.copy(found, ETCD)
        shutil.rmtree(CACHE / "debian")
    if not APISERVER.exists():
        build_apiserver()
    print(f"{APISERVER} {VERSION}, {ETCD}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed: {' '.join(error.cmd)}")
