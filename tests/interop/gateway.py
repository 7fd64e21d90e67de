"""A running `uxfrm run CONFIG.toml` in one network namespace."""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile
import time

import patience

TUN = "uxfrm0"
READY = "uxfrm: ready"
START_SECONDS = STOP_SECONDS = WRITE_SECONDS = patience.SECONDS
CONTROLLED = """
[control]
enabled = true
"""


class Gateway:
    """Started by `start`, ended by `stop` (SIGTERM, must be clean) or `kill` (SIGKILL)."""

    def __init__(self, binary, namespace, mtu=1400, workers=1):
        self.namespace = namespace
        self._binary = binary
        self._mtu = mtu
        self._workers = workers
        self._directory = tempfile.TemporaryDirectory(prefix="uxfrm-test-")
        self._process = None

    @property
    def directory(self):
        return pathlib.Path(self._directory.name)

    @property
    def batch(self):
        return self.directory / "xfrm.batch"

    def log(self):
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def write(self, lines, guard="auto", more="", wire="", at_exit="open"):
        """Lays the `ip xfrm` lines and the configuration that names them."""
        self.batch.write_text("".join(f"{line}\n" for line in lines))
        (self.directory / "config.toml").write_text(configuration(self._mtu, self.batch, guard, self._workers, wire, at_exit) + more)

    def start(self, lines=(), guard="auto", more="", wire="", at_exit="open"):
        """`more` is further TOML, as `CONTROLLED`; `wire` further lines of that table. Tests
        share networks, so the host is left as it was."""
        self.write(lines, guard, more, wire, at_exit)
        self.launch()

    def launch(self):
        """With the configuration that is there."""
        with open(self.directory / "log", "w") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace.name, self._binary, "run", self.directory / "config.toml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_ready()

    def _wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while READY not in self.log():
            if (status := self._process.poll()) is not None:
                raise AssertionError(f"uxfrm run ended at start with {status}:\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"uxfrm run was not ready after {START_SECONDS} s:\n{self.log()}")
            time.sleep(0.01)

    def ip(self, words):
        """What `uxfrm exec -- ip WORDS` prints."""
        return self.namespace.run(str(self._binary), "exec", "--", "ip", *words.split())

    def wait_until_written_down(self, source, destination):
        """Until the disk has the policies of a tunnel in all directions: a kill before that
        leaves it plain after the next start."""
        ways = {("out", source, destination), ("in", destination, source), ("fwd", destination, source)}
        portrait = self.directory / "sequences" / "policies"
        deadline = time.monotonic() + WRITE_SECONDS
        while missing := ways - refused_by(portrait):
            assert time.monotonic() < deadline, f"not written down: {missing}"
            time.sleep(0.02)

    def stat(self):
        """What `uxfrm stat` prints."""
        return self.namespace.run(str(self._binary), "stat")

    def statistics(self):
        """The counters of `uxfrm stat` that are not zero."""
        lines = (line.split() for line in self.stat().splitlines())
        return {name: int(count) for name, count in lines if count != "0"}

    def memory(self):
        """Kilobytes that the program has in memory."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB$", status, re.M)[1])

    def running(self):
        return self._process is not None and self._process.poll() is None

    def stop(self):
        """SIGTERM; the gateway must end by itself and say success."""
        assert self.running(), f"uxfrm run ended by itself:\n{self.log()}"
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"uxfrm run went on for {STOP_SECONDS} s after SIGTERM:\n{self.log()}") from None
        assert status == 0, f"uxfrm run ended with {status} after SIGTERM:\n{self.log()}"

    def upgrade(self, binary=None, check=True):
        """What `uxfrm upgrade [BINARY]` prints."""
        return self.namespace.run(str(self._binary), "upgrade", *([str(binary)] if binary else []), check=check)

    @property
    def pid(self):
        """Of the gateway's own process, which `uxfrm run` supervises."""
        deadline = time.monotonic() + STOP_SECONDS
        while len(pids := self._children()) != 1:  # one that has handed over ends a moment later
            assert time.monotonic() < deadline, f"processes {pids} of supervisor {self._process.pid}"
            time.sleep(0.005)
        return int(pids[0])

    def _children(self):
        supervisor = self._process.pid
        return pathlib.Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()

    def hang_up(self):
        """SIGHUP."""
        self._process.send_signal(signal.SIGHUP)

    @contextlib.contextmanager
    def asleep(self):
        """SIGSTOP meanwhile."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill(self):
        """The gateway's own process ends a moment after the one that supervises it."""
        if self.running():
            with contextlib.ExitStack() as ends:
                watched = [ends.enter_context(open_pidfd(int(pid))) for pid in self._children()]
                self._process.kill()
                self._process.wait()
                for gateway in watched:
                    select.select([gateway], [], [], STOP_SECONDS)

    def close(self):
        """After any test, a failed one too: nothing is left running, no rule is left to the
        next, nothing on disk."""
        if self.running():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()
        self._directory.cleanup()


@contextlib.contextmanager
def open_pidfd(pid):
    """A descriptor that is readable once the last thread of the process has ended, and with it
    all that it held."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def refused_by(portrait):
    """Direction, source and destination of what a portrait of policies says is refused."""
    lines = portrait.read_text().splitlines() if portrait.exists() else []
    words = [line.split() for line in lines]
    return {(each[0], each[6], each[7]) for each in words if each[2:3] == ["refuse"]}


def configuration(mtu, batch, guard, workers=1, wire="", at_exit="open"):
    return f"""\
[host]
tun = "{TUN}"
mtu = {mtu}
guard = "{guard}"
at_exit = "{at_exit}"

[wire]
encapsulation = "esp"
udp_ports = [4500]
{wire}

[xfrm]
batch = [{json.dumps(str(batch))}]
sequences = "sequences"

[runtime]
workers = {workers}
"""
