"""The real Linux kernels that uxfrm is tested against, a User-Mode Linux guest and one in QEMU, and
the requests they are sent.

The network driver of User-Mode Linux now and then (once in some 5,000 frames on a busy machine)
misses the signal for a frame, which then lies in the TAP until the next one comes. So a guest
gets a frame that means nothing every RING_SECONDS.
"""

import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from prerequisite import REPOSITORY

PEER = REPOSITORY / "tests" / "peer"
RING_SECONDS = 0.1
RING_ETHERTYPE = 0x88B5  # for local experiments (IEEE 802): nobody takes it
RING_FRAME = bytes.fromhex("ffffffffffff 020000000000") + RING_ETHERTYPE.to_bytes(2, "big") + bytes(46)


class LinuxGuest:
    """One guest on one TAP device, driven through files by `tests/peer/agent.py`."""

    program = "linux-peer"
    boot_seconds, life_seconds = 600, 3600

    def __init__(self, namespace, tap):
        self._directory = tempfile.TemporaryDirectory(prefix="uxfrm-guest-")
        self._channel = pathlib.Path(self._directory.name)
        self._requests = 0
        (self._channel / "job").write_text("/usr/bin/python3 -B /run/channel/agent.py\n")
        for program in ("agent.py", "echo.py"):
            shutil.copy(PEER / program, self._channel)
        with open(self._channel / "console", "w") as console:
            self._process = subprocess.Popen(
                [PEER / self.program, namespace.name, tap, self._channel, str(self.life_seconds)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        try:
            self.run("true", timeout=self.boot_seconds)
        except AssertionError:
            self._end_by_force()
            raise
        self._doorbell = Doorbell(namespace, tap)

    def console(self):
        return (self._channel / "console").read_text(errors="replace")

    def run(self, script, check=True, timeout=120):
        """Runs a shell script in the guest and returns what it printed."""
        reply = self._ask({"run": script}, timeout)
        if check and reply["status"] != 0:
            raise RuntimeError(f"Linux: {script}\nexit {reply['status']}\n{reply['output']}")
        return reply["output"]

    def transfer(self, source, destination, length):
        """One TCP connection from the guest to the echo service; see echo.transfer."""
        reply = self._ask({"transfer": [source, destination, length]}, timeout=150)
        assert reply["status"] == 0, f"Linux: TCP to {destination}:\n{reply['output']}"

    def xfrm(self, lines):
        """Replaces all states and policies by these lines, as `ip -batch` does it."""
        batch = "\n".join(["xfrm state flush", "xfrm policy flush", *lines])
        self.run(f"ip -batch - <<'LINES'\n{batch}\nLINES")

    def statistics(self):
        """The counters of /proc/net/xfrm_stat that are not zero."""
        lines = (line.split() for line in self.run("cat /proc/net/xfrm_stat", check=False).splitlines())
        return {name: int(count) for name, count in (line for line in lines if len(line) == 2) if count != "0"}

    def _ask(self, request, timeout):
        number, self._requests = self._requests, self._requests + 1
        unfinished = self._channel / f"{number}.asking"
        unfinished.write_text(json.dumps(request))
        unfinished.rename(self._channel / f"{number}.request")
        reply = self._channel / f"{number}.reply"
        deadline = time.monotonic() + timeout
        while not reply.exists():
            if self._process.poll() is not None:
                raise AssertionError(f"the Linux guest has ended:\n{self.console()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"the Linux guest did not answer in {timeout} s: {request}\n{self.console()}")
            time.sleep(0.005)
        return json.loads(reply.read_text())

    def close(self):
        self._doorbell.close()
        try:
            self._ask({"stop": None}, timeout=60)
            self._process.wait(60)
        except (AssertionError, subprocess.TimeoutExpired):
            self._end_by_force()
        self._directory.cleanup()

    def _end_by_force(self):
        self._process.terminate()  # linux-peer passes it on
        self._process.wait()


class QemuGuest(LinuxGuest):
    """A guest with Debian's cloud kernel, which sends FOU and GUE as well. It is driven through
    a port; see `tests/peer/qemu-peer`."""

    program = "qemu-peer"
    boot_seconds, life_seconds = 600, 3600
    _port = None

    def _ask(self, request, timeout):
        deadline = time.monotonic() + timeout
        self._connect(deadline)
        self._port.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            self._port.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(self._answers.readline())
        except (OSError, ValueError) as error:
            raise AssertionError(f"the Linux guest did not answer: {error}: {request}\n{self.console()}") from None

    def _connect(self, deadline):
        while self._port is None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._channel / "port"))
            except OSError:
                connection.close()
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the Linux guest does not start:\n{self.console()}") from None
                time.sleep(0.05)
            else:
                self._port, self._answers = connection, connection.makefile()

    def close(self):
        super().close()
        if self._port is not None:
            self._answers.close()
            self._port.close()


class Doorbell:
    """Sends RING_FRAME to a TAP device until it is closed."""

    def __init__(self, namespace, tap):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.bind((tap, 0))  # protocol 0: it only sends
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._ring, daemon=True)
        self._thread.start()

    def _ring(self):
        while not self._stopping.wait(RING_SECONDS):
            try:
                self._socket.send(RING_FRAME)
            except OSError:
                pass  # a full queue or a device that is down: the next one will do

    def close(self):
        self._stopping.set()
        self._thread.join()
        self._socket.close()
