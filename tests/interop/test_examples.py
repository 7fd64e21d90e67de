"""Each example that a user may start: it ends well, which it does only when nothing but ESP and
IKE was on the wire, and leaves neither namespaces nor processes behind."""

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import pytest

import prerequisite
from prerequisite import REPOSITORY

PATIENCE_SECONDS = "180"
GRACE_SECONDS = 10
SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
TELLS_ITS_NUMBER = 'echo $$ && exec "$@"'
STRONGSWAN = ["net-to-net", "host-to-host", "trap", "road-warrior", "certificates", "nat"]


@pytest.mark.parametrize("example", STRONGSWAN)
def test_strongswan(example, uxfrm):
    prerequisite.strongswan()
    run("strongswan", example, uxfrm)


def test_libreswan(uxfrm):
    prerequisite.libreswan()
    run("libreswan", "net-to-net", uxfrm)


def run(daemon, example, uxfrm):
    prerequisite.programs(tcpdump="tcpdump", nft="nftables")
    adopt_orphans()
    others = children()
    # Not a pipe: whoever is left behind would keep it open, and be waited for.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            ["timeout", PATIENCE_SECONDS, "sh", "-c", TELLS_ITS_NUMBER, "sh", REPOSITORY / "examples" / daemon / "run", example],
            env=os.environ | {"UXFRM": str(uxfrm)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        output.seek(0)
        printed = output.read()
    left_behind = end_orphans(others)
    assert done.returncode == 0, printed
    assert left_behind == [], printed
    assert " 0% packet loss" in printed
    assert namespaces(printed.splitlines()[0]) == []


def adopt_orphans():
    """From now on what the test's children leave behind is the test's own child. An environment
    would not tell: uxfrm hides its own."""
    if ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl: no subreaper")


def end_orphans(others):
    """Tells the commands of the test's children, but for `others`, that don't end by themselves,
    and ends them."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (orphans := children(others)) and time.monotonic() < deadline:
        time.sleep(0.05)
    commands = [(pathlib.Path("/proc") / str(orphan) / "cmdline").read_text().replace("\0", " ") for orphan in orphans]
    for orphan in orphans:
        os.kill(orphan, signal.SIGKILL)
        os.waitpid(orphan, 0)
    return commands


def children(others=()):
    """The test's own that run, but for `others`; those that have ended are taken off the list."""
    running = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            known = parent != os.getpid() or int(process.name) in others
            if not known and os.waitpid(int(process.name), os.WNOHANG) == (0, 0):
                running.append(int(process.name))
    return running


def namespaces(process):
    """What the example with this process number has made and not taken away; others may run
    beside."""
    return sorted(name for name in os.listdir("/run/netns") if name.startswith(f"uxe{process}-"))
