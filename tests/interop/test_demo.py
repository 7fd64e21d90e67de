"""`uxfrm demo`, as `make demo` runs it: it ends by itself, says what it measured, and leaves
nothing behind.

No figure is asserted: this machine's speed is not under test.
"""

import json
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import prerequisite
import topology
from namespace import command

DEMO_SECONDS = 120

# $0 is a directory, "$@" the command. Distributions let every user open /dev/net/tun; this machine
# may not.
AS_ORDINARY_USER = """
[ -e "$0/tun" ] || mknod "$0/tun" c 10 200
chmod 0666 "$0/tun"
mount --bind "$0/tun" /dev/net/tun
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


@pytest.fixture
def host(uxfrm):
    """A namespace of the test's own stands for the host on which the demo is started."""
    with topology.Hosts() as hosts:
        yield hosts.namespace("demo")


def run_demo(namespace, *words):
    with namespace.entered():
        done = subprocess.run(
            [*words, "demo", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEMO_SECONDS
        )
    assert done.returncode == 0, f"uxfrm demo: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def host_state(namespace):
    state = [namespace.ip(words) for words in ("-br link", "rule", "route show table all")]
    named = sorted(path.name for path in pathlib.Path("/run/netns").iterdir() if "uxfrm" in path.name)
    return state, named


def test_demo_leaves_the_host_as_it_was(uxfrm, host):
    before = host_state(host)
    assert run_demo(host, uxfrm), "an object with the table's rows"
    assert host_state(host) == before


@pytest.fixture
def directory_for_all():
    """Where every user may read: the repository may be in root's home."""
    with tempfile.TemporaryDirectory(prefix="uxfrm-demo-") as directory:
        pathlib.Path(directory).chmod(0o755)
        yield directory


def test_demo_without_root(uxfrm, host, directory_for_all):
    """An ordinary user, where user namespaces are allowed."""
    ordinary_user = ["unshare", "--mount", "sh", "-euc", AS_ORDINARY_USER, directory_for_all]
    try:
        command(*ordinary_user, "unshare", "--map-root-user", "--net", "sh", "-c", "exec 3<>/dev/net/tun")
    except RuntimeError as refusal:
        prerequisite.not_run(f"an ordinary user may make no user namespace here: {refusal}")
    assert run_demo(host, *ordinary_user, shutil.copy(uxfrm, directory_for_all))
