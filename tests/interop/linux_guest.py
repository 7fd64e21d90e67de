"""The real Linux kernel that uxfrm is tested against: a User-Mode Linux guest and the requests it is sent."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import time

from prerequisite import REPOSITORY

PEER = REPOSITORY / "tests" / "peer"
BOOT_SECONDS = 60
LIFE_SECONDS = 900


class LinuxGuest:
    """One guest on one TAP device, driven through files by `tests/peer/agent.py`."""

    def __init__(self, namespace, tap):
        self._directory = tempfile.TemporaryDirectory(prefix="uxfrm-guest-")
        self._channel = pathlib.Path(self._directory.name)
        self._requests = 0
        (self._channel / "job").write_text("/usr/bin/python3 -B /run/channel/agent.py\n")
        for program in ("agent.py", "echo.py"):
            shutil.copy(PEER / program, self._channel)
        with open(self._channel / "console", "w") as console:
            self._process = subprocess.Popen(
                [PEER / "linux-peer", namespace.name, tap, self._channel, str(LIFE_SECONDS)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        try:
            self.run("true", timeout=BOOT_SECONDS)
        except AssertionError:
            self._end_by_force()
            raise

    def console(self):
        return (self._channel / "console").read_text(errors="replace")

    def run(self, script, check=True, timeout=30):
        """Runs a shell script in the guest and returns what it printed."""
        reply = self._ask({"run": script}, timeout)
        if check and reply["status"] != 0:
            raise RuntimeError(f"Linux: {script}\nexit {reply['status']}\n{reply['output']}")
        return reply["output"]

    def transfer(self, source, destination, length):
        """One TCP connection from the guest to the echo service; see echo.transfer."""
        reply = self._ask({"transfer": [source, destination, length]}, timeout=40)
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
        try:
            self._ask({"stop": None}, timeout=10)
            self._process.wait(20)
        except (AssertionError, subprocess.TimeoutExpired):
            self._end_by_force()
        self._directory.cleanup()

    def _end_by_force(self):
        self._process.terminate()  # linux-peer passes it on
        self._process.wait()
