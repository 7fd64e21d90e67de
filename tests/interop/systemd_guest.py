"""A Debian 12 of its own kernel: systemd boots a clean root in QEMU, by KVM where that runs guests.

It has what a container lacks: AppArmor, and a kernel that is nobody else's. Commands come by a
virtio port, a line each in base64; `AGENT` runs them and answers with status and output.
"""

import base64
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import patience
from clean_root import SYSTEMD, CleanRoot
from prerequisite import REPOSITORY

BOOT_SECONDS, COMMAND_SECONDS, LIFE_SECONDS = 900, 300, 3000
MEMORY_MIB, IMAGE_MIB = 768, 2048
# What the kernel needs until it has its root.
EARLY = ("virtio_pci", "virtio_blk", "virtio_console", "ext4", "crc32c_generic")
INIT = """#!/busybox sh
/busybox mkdir -p /proc /sys /dev /root
/busybox mount -t devtmpfs dev /dev
for module in /lib/modules/*.ko; do /busybox insmod $module; done
until [ -b /dev/vda ]; do /busybox sleep 0.1; done
/busybox mount -t ext4 /dev/vda /root
exec /busybox switch_root /root /lib/systemd/systemd
"""
AGENT = """#!/bin/bash
exec 3<>/dev/vport*p1
while :; do
	IFS= read -r line <&3 || { sleep 0.1; continue; } # nobody holds the other end yet
	said=$(sh -c "$(base64 -d <<<"$line")" 2>&1 </dev/null 3>&-)
	status=$?
	printf '%s %s\\n' $status "$(printf %s "$said" | base64 -w0)" >&3
done
"""
UNIT = """[Unit]
Description=Commands of the test
[Service]
ExecStart=/root/agent
[Install]
WantedBy=multi-user.target
"""
# no_timer_check: on a busy machine the emulated timer is late, and the kernel would panic at boot.
COMMAND_LINE = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check apparmor=1 security=apparmor"


class SystemdGuest:
    """One guest; commands are those of `CleanRoot`."""

    def __init__(self, namespace, package):
        self._directory = tempfile.TemporaryDirectory(prefix="uxfrm-systemd-guest-")
        self._place = pathlib.Path(self._directory.name)
        self._port = None
        kernel = pathlib.Path(_said(REPOSITORY / "scripts" / "cloud-kernel"))
        (release,) = [path.name for path in (kernel / "lib/modules").iterdir()]
        self._make_image(namespace, package, kernel / "lib/modules" / release)
        self._make_initrd(kernel, release)
        self._console = open(self._place / "console", "w")
        accelerator = _said(REPOSITORY / "scripts" / "accelerator")
        self._process = subprocess.Popen(
            ["timeout", "--kill-after=5", str(LIFE_SECONDS), "qemu-system-x86_64", "-machine", f"accel={accelerator}", "-cpu", "max",
             "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio", "-nic", "none",
             "-kernel", kernel / f"boot/vmlinuz-{release}", "-initrd", self._place / "initrd", "-append", COMMAND_LINE,
             "-drive", f"file={self._place}/image,format=raw,if=virtio,cache=unsafe",
             "-chardev", f"socket,id=port,path={self._place}/port,server=on,wait=off",
             "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port"],
            stdin=subprocess.DEVNULL, stdout=self._console, stderr=self._console)
        try:
            self._connect()
            self.run("systemctl", "is-system-running", "--wait", check=False)
        except BaseException:
            self.close()
            raise

    def _make_image(self, namespace, package, modules):
        root = CleanRoot(namespace, SYSTEMD)
        try:
            shutil.copy(package, root.path / "root" / package.name)
            shutil.copytree(modules, root.path / "lib/modules" / modules.name)
            (root.path / "root/agent").write_text(AGENT)
            (root.path / "root/agent").chmod(0o755)
            (root.path / "etc/systemd/system/agent.service").write_text(UNIT)
            root.run("systemctl", "enable", "agent.service")
            command = ["mke2fs", "-q", "-t", "ext4", "-d", root.path, self._place / "image", f"{IMAGE_MIB}M"]
            subprocess.run(command, check=True)
        finally:
            root.close()

    def _make_initrd(self, kernel, release):
        root = self._place / "initrd-root"
        (root / "lib/modules").mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "busybox")
        (root / "init").write_text(INIT)
        (root / "init").chmod(0o755)
        order = []
        for module in EARLY:
            shown = _said("modprobe", "-d", kernel, "-S", release, "--show-depends", module)
            order += [line.split()[1] for line in shown.splitlines() if line.startswith("insmod")]
        for number, module in enumerate(dict.fromkeys(order)):
            shutil.copy(module, root / "lib/modules" / f"{number:03}-{pathlib.Path(module).name}")
        with open(self._place / "initrd", "w") as initrd:
            subprocess.run("find . | cpio --quiet -o -H newc", shell=True, check=True, cwd=root, stdout=initrd)

    def console(self):
        return (self._place / "console").read_text(errors="replace")

    def _connect(self):
        def connected():
            assert self._process.poll() is None, self.console()
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._place / "port"))
            except OSError:
                connection.close()
                return None
            return connection

        self._port = patience.wait_for(connected, self.console)
        self._answers = self._port.makefile()
        begun = time.monotonic()
        self._ask("true", BOOT_SECONDS)
        self.boot_seconds = time.monotonic() - begun

    def _ask(self, script, seconds):
        self._port.settimeout(seconds)
        try:
            self._port.sendall(base64.b64encode(script.encode()) + b"\n")
            status, _, said = self._answers.readline().partition(" ")
            return int(status), base64.b64decode(said).decode()
        except (OSError, ValueError) as error:
            raise AssertionError(f"the guest does not answer: {error}: {script}\n{self.console()}") from None

    def ask(self, *words):
        status, said = self._ask(" ".join("'" + str(word).replace("'", "'\\''") + "'" for word in words), COMMAND_SECONDS)
        return subprocess.CompletedProcess(words, status, said)

    def run(self, *words, check=True):
        """What a command in the guest printed, without the last ends of line."""
        done = self.ask(*words)
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def close(self):
        if self._port is not None:
            self._answers.close()
            self._port.close()
        self._process.terminate()
        self._process.wait()
        self._console.close()
        self._directory.cleanup()


def _said(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
