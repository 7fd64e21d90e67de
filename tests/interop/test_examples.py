"""Each example that a user may start: it ends well, which it does only when nothing but ESP and IKE was on the wire."""

import os
import subprocess

import pytest

import prerequisite
from prerequisite import REPOSITORY

PATIENCE_SECONDS = "60"
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
    before = namespaces()
    done = subprocess.run(
        ["timeout", PATIENCE_SECONDS, REPOSITORY / "examples" / daemon / "run", example],
        env=os.environ | {"UXFRM": str(uxfrm)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert " 0% packet loss" in done.stdout
    assert namespaces() == before


def namespaces():
    """Of the examples, whoever runs them."""
    return sorted(name for name in os.listdir("/run/netns") if name.startswith("uxe"))
