"""What the interop tests need of the machine, and how a test says that it was not run.

With CI=true a missing prerequisite is a failure. On a user's machine it is `not run: REASON`, in
the summary's own line: never a pass.
"""

import os
import pathlib
import shutil
import socket
import struct
import subprocess

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NETLINK_NETFILTER, NLMSG_ERROR = 12, 2
LINUX_MODULES = pathlib.Path("/usr/lib/uml/modules")


def not_run(reason):
    if os.environ.get("CI") == "true":
        pytest.fail(f"not run: {reason} (with CI=true this is a failure)", pytrace=False)
    pytest.skip(f"not run: {reason}", allow_module_level=True)


def root():
    if os.geteuid() != 0:
        not_run("needs root, to make network namespaces")
    if not pathlib.Path("/dev/net/tun").exists():
        not_run("needs /dev/net/tun")


def programs(**packages):
    """Each argument is a program and the Debian package that it comes in."""
    for program, package in packages.items():
        if not shutil.which(program):
            not_run(f"needs {program}: apt-get install {package}")


def python_package(directory, requirement):
    """An environment of its own with a package from PyPI; its programs are in what is returned."""
    steps = [["/usr/bin/python3", "-m", "venv", directory], [directory / "bin" / "pip", "install", "-q", requirement]]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode != 0:
            not_run(f"needs python3-venv and PyPI: {(done.stderr or done.stdout).strip()[-200:]}")
    return directory / "bin"


def packet_filter():
    """A kernel with nf_tables: one that answers NFT_MSG_GETGEN."""
    request = struct.pack("=IHHIIBBH", 20, 10 << 8 | 16, 1 | 4, 1, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as kernel:
        kernel.send(request)
        kind, error = struct.unpack_from("=4xH10xi", kernel.recv(4096))
    if kind == NLMSG_ERROR and error != 0:
        not_run("needs a kernel with nf_tables")


def links(kind, *words):
    """A kernel that makes links of a kind; the machine's own need not have it."""
    made = ["unshare", "-n", "ip", "link", "add", "type", kind, *words]
    if subprocess.run(made, stderr=subprocess.DEVNULL).returncode != 0:
        not_run(f"needs a kernel with {kind}")


def strongswan():
    root()
    programs(
        **{"/usr/lib/ipsec/charon": "strongswan-charon", "swanctl": "strongswan-swanctl", "pki": "strongswan-pki"},
    )


def libreswan():
    root()
    programs(certutil="libnss3-tools")
    if subprocess.run([REPOSITORY / "scripts" / "libreswan"], stdout=subprocess.DEVNULL).returncode != 0:
        not_run("needs libreswan: scripts/libreswan fetches Debian's")


def linux_peer():
    root()
    if not (shutil.which("linux.uml") and LINUX_MODULES.is_dir()):
        not_run("needs a Linux kernel as a process: apt-get install user-mode-linux (amd64 only)")
    programs(cc="gcc libc6-dev", modprobe="kmod")


def qemu_peer():
    root()
    programs(**{"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "modprobe": "kmod"})
    if subprocess.run([REPOSITORY / "scripts" / "cloud-kernel"], stdout=subprocess.DEVNULL).returncode != 0:
        not_run("needs Debian's cloud kernel: scripts/cloud-kernel fetches it (amd64 only)")


def binary():
    """The uxfrm binary: $UXFRM, or else the newest of cargo's."""
    if named := os.environ.get("UXFRM"):
        return pathlib.Path(named).resolve()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    built = [path for profile in ("release", "debug") if (path := target / profile / "uxfrm").exists()]
    if not built:
        not_run(f"needs the uxfrm binary in {target}: cargo build --release")
    return max(built, key=lambda path: path.stat().st_mtime)
