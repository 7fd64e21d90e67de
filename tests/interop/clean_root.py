"""A Debian 12 in a directory: a root of its own for what a package does to a machine.

It is made once by mmdebstrap and kept in the target directory; each test has a layer over it.
"""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

import patience
from prerequisite import REPOSITORY

SUITE = "bookworm"
BASIC = ("iproute2", "iputils-ping", "nftables")
STRONGSWAN = (*BASIC, "charon-systemd", "strongswan-swanctl")
LIBRESWAN = (*BASIC, "libreswan")
SYSTEMD = (*STRONGSWAN, "systemd", "dbus", "apparmor", "curl", "udev", "kmod")
# In the network namespace that it is called in.
ENTER = 'mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" && exec chroot "$0" "$@"'
# systemd as the first process of its own namespaces but the network's; /sys is read-only as in any container.
BOOT = """
mount -t proc proc "$0/proc"
mount -t sysfs -o ro sysfs "$0/sys"
mount -t cgroup2 cgroup2 "$0/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$0/run"
exec env -i container=oci PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$0" /lib/systemd/systemd
"""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
BLOCKED = "# CVE-2026-43284\ninstall esp4 /bin/false\ninstall esp6 /bin/false\n"
# What installing and removing anything leaves in a root; users stay by Debian's custom.
TRACES = {"dpkg", "log", "cache", "passwd", "passwd-", "group", "group-", "shadow", "shadow-", "gshadow", "gshadow-", ".pwd.lock"}


def base(packages):
    """The directory that roots with these packages begin with; it is filled if it is not there."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    name = hashlib.sha256(" ".join([SUITE, *packages]).encode()).hexdigest()[:12]
    path = target.resolve() / "clean-roots" / f"{SUITE}-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            new = path.with_suffix(".new")
            subprocess.run(["rm", "-rf", new], check=True)
            made = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}", SUITE, str(new)]
            subprocess.run(made, check=True)
            new.rename(path)
    return path


def commands(unit, key):
    """The commands of a key in a unit's text, in words."""
    return [line.split() for line in re.findall(rf"^{key}=(.+)$", unit, re.M)]


class CleanRoot:
    """Goes with `close`; commands run in one network namespace. What is changed is in memory."""

    def __init__(self, namespace, packages=STRONGSWAN):
        self._namespace = namespace
        self._place = pathlib.Path(tempfile.mkdtemp(prefix="uxfrm-root-"))
        self._processes = []
        self._systemd = self._outside = None
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self._place], check=True)
        self.path, upper, work = (self._place / name for name in ("root", "upper", "work"))
        for directory in (self.path, upper, work):
            directory.mkdir()
        layers = f"lowerdir={base(packages)},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, self.path], check=True)
        # As udev makes it, for all users.
        (self.path / "dev/net").mkdir()
        os.mknod(self.path / "dev/net/tun", 0o666 | stat.S_IFCHR, os.makedev(10, 200))
        os.chmod(self.path / "dev/net/tun", 0o666)

    def boot(self):
        """systemd runs in it from now on. It has no terminal to log in at."""
        for unit in ("console-getty.service", "getty@tty1.service"):
            (self.path / "etc/systemd/system" / unit).symlink_to("/dev/null")
        apart = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
        command = ["ip", "netns", "exec", self._namespace.name, *apart, "sh", "-euc", BOOT, str(self.path)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._outside = process
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        self._systemd = patience.wait_for(lambda: children.read_text().split(), "systemd")[0]
        is_up = lambda: self.ask("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")
        patience.wait_for(is_up, lambda: self.ask("systemctl", "list-jobs").stdout)

    def _command(self, words):
        if self._systemd:
            return ["nsenter", f"--target={self._systemd}", *"-m -p -n -i -u -C -r -w".split(), *map(str, words)]
        inside = ["unshare", "--mount", "sh", "-c", ENTER, str(self.path)]
        return ["ip", "netns", "exec", self._namespace.name, *inside, *map(str, words)]

    def run(self, *words, check=True):
        """What a command in the root printed."""
        done = self.ask(*words)
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def ask(self, *words):
        return subprocess.run(
            self._command(words), env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def start(self, *words):
        """A program that goes on; its output is in a file beside the root."""
        log = open(self.path / "var/log" / f"test-{len(self._processes)}", "w+")
        process = subprocess.Popen(self._command(words), env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        process.log = pathlib.Path(log.name)
        self._processes.append(process)
        return process

    def start_gateway(self):
        """`uxfrm.service`, as systemd would: its command as its user, with its capabilities."""
        unit = (self.path / "usr/lib/systemd/system/uxfrm.service").read_text()
        for directory in ("/var/lib/uxfrm/gateway", "/run/uxfrm"):
            self.run("install", "-d", "-o", "uxfrm", "-g", "uxfrm", directory)
        names = re.search(r"^AmbientCapabilities=(.+)$", unit, re.M)[1].lower().replace("cap_", "+").split()
        these = ",".join(["-all", *names])
        as_user = ["setpriv", "--reuid=uxfrm", "--regid=uxfrm", "--clear-groups", f"--inh-caps={these}", f"--ambient-caps={these}"]
        places = ["env", "STATE_DIRECTORY=/var/lib/uxfrm/gateway", "RUNTIME_DIRECTORY=/run/uxfrm"]
        gateway = self.start(*as_user, *places, *commands(unit, "ExecStart")[-1])
        patience.wait_for(lambda: "uxfrm: ready" in gateway.log.read_text(), gateway.log.read_text)
        return gateway

    def drop_in(self, unit):
        """What setup has written for a unit."""
        return (self.path / f"etc/systemd/system/{unit}.d/uxfrm.conf").read_text()

    def install(self, package):
        shutil.copy(package, self.path / "root" / package.name)
        return self.run("dpkg", "--install", f"/root/{package.name}")

    def block_kernel_esp(self):
        """As distributions have switched it off."""
        place = self.path / "etc/modprobe.d"
        place.mkdir(exist_ok=True)
        (place / "cve.conf").write_text(BLOCKED)

    def files(self):
        """All that is there, but for the traces of dpkg itself."""
        found = set()
        for directory, names, files in os.walk(self.path):
            place = pathlib.Path(directory).relative_to(self.path)
            if place.parts[:1] in [("root",), ("proc",), ("sys",), ("dev",)]:
                continue
            names[:] = [name for name in names if name not in TRACES]
            found |= {str(place / name) for name in [*names, *files] if name not in TRACES}
        return found

    def close(self):
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
                process.wait(60)
        if self._outside:
            self._outside.kill()  # and with it all that systemd runs
            self._outside.wait()
        for mounted in (self.path, self._place):
            subprocess.run(["umount", "--lazy", mounted], check=True)
        self._place.rmdir()
