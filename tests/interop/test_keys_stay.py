"""Keys reach neither core dumps nor swap: `run` and the clients that read them leave no core,
and `run` locks its memory where it may."""

import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile

import pytest

import patience
import prerequisite
from listener import last_child
from topology import Hosts

WORK_SECONDS = 0.3
NO_LOCK = """#!/bin/sh
exec prlimit --memlock=65536:65536 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock -- {} "$@"
"""


class Alone(Hosts):
    """A namespace with a gateway."""

    def _build(self, binary):
        self.here = self.namespace("keys")
        self.gateway_of = self.gateway(binary, self.here)


def killed(words, directory, waits=True):
    """Whether a program that waits for its input, or is busy with it, leaves a core when SIGABRT
    ends it."""
    child = subprocess.Popen(
        words,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2),
    )
    is_there = is_reading if waits else is_busy
    try:
        patience.wait_for(lambda: is_there(child.pid), f"{words} does not read")
        assert child.poll() is None, f"{words} has done with its input"
    finally:
        child.send_signal(signal.SIGABRT)
    _pid, status = os.waitpid(child.pid, 0)
    child.stdin.close()
    child.returncode = status
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT
    return os.WCOREDUMP(status)


def is_reading(process):
    """Whether it waits for its standard input, a pipe."""
    return "pipe_read" in pathlib.Path(f"/proc/{process}/wchan").read_text()


def is_busy(process):
    """Whether it, or the gateway that it supervises, has worked for longer than a start takes."""
    ticks = sum(map(int, status_fields(last_child(process))[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK") > WORK_SECONDS


def status_fields(process):
    return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(prefix="uxfrm-keys-") as made:
        if not killed(["cat"], made):
            prerequisite.not_run("no program leaves a core here (kernel.core_pattern)")
        yield pathlib.Path(made)


@pytest.mark.parametrize("words", [["xfrm", "-batch", "-"], ["xfrm", "sync", "-"], ["check", "config.toml"], ["run", "config.toml"]], ids=" ".join)
def test_who_reads_keys_leaves_no_core(words, uxfrm, directory):
    """One waits for a batch from its standard input, the others read one for seconds."""
    with open(directory / "keys.batch", "w") as batch:
        for number in range(1_000_000):
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            batch.write(f"xfrm policy add src {address} dst 192.0.2.1 dir out priority {number}\n")
    (directory / "config.toml").write_text('[xfrm]\nbatch = ["keys.batch"]\nsequences = "sequences"\n')
    with Alone(uxfrm) as network:
        if words[0] == "xfrm":
            network.gateway_of.start([])
        with network.here.entered():
            assert not killed([uxfrm, *words], directory, waits=words[0] == "xfrm")


def locked(gateway):
    """Kilobytes."""
    status = pathlib.Path(f"/proc/{gateway.pid}/status").read_text()
    return int(re.search(r"^VmLck:\s+(\d+) kB$", status, re.M)[1])


def has_capability():
    effective = re.search(r"^CapEff:\s+(\S+)$", pathlib.Path("/proc/self/status").read_text(), re.M)[1]
    return int(effective, 16) >> 14 & 1 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != 0


def test_a_gateways_memory_is_locked(uxfrm):
    if not has_capability():
        prerequisite.not_run("needs CAP_IPC_LOCK")
    with Alone(uxfrm) as network:
        network.gateway_of.start([])
        assert locked(network.gateway_of) >= network.gateway_of.memory() // 2
        assert "swap" not in network.gateway_of.log()
        network.gateway_of.stop()


def test_where_it_may_not_be_it_runs_and_says_so(uxfrm, tmp_path):
    prerequisite.programs(setpriv="util-linux", prlimit="util-linux")
    wrapper = tmp_path / "uxfrm"
    wrapper.write_text(NO_LOCK.format(uxfrm))
    wrapper.chmod(0o755)
    with Alone(wrapper) as network:
        network.gateway_of.start([])
        assert "keys may be written to swap" in network.gateway_of.log()
        assert locked(network.gateway_of) == 0
        network.gateway_of.stop()
