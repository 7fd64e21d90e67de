"""Hosts that check ways back strictly (`rp_filter` 1) drop what comes from where uxfrm's routes
lead, and uxfrm says so.

That is ESP too, where the policies protect all traffic of the peer's: from host to host, or to
everywhere. The kernel counts it (`TcpExtIPReversePathFilter`), and nobody else sees it.
"""

import time

import pytest

import patience
import topology
from namespace import received
from topology import HERE, THERE

KEY = "aead rfc4106(gcm(aes)) 0x" + "11" * 20 + " 128"
TOLD = "net.ipv4.conf.wire0.rp_filter is 1: the kernel drops all that comes from 10.9.0.2 by wire0"


class Checking(topology.PlacedGateways):
    """Both kernels check ways back as they are told."""

    def _build(self, uxfrm):
        super()._build()
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)

    def check(self, how):
        for namespace in (self.left, self.right):
            namespace.run("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", f"net.ipv4.conf.wire0.rp_filter={how}")

    def start(self, mode, here, there):
        """The two ends' addresses in the policies; `there` is everywhere for the left one."""
        self.here.start(lines(mode, HERE, THERE, here, there))
        self.there.start(lines(mode, THERE, HERE, there, here))

    def replies(self, here, there, seconds=patience.SECONDS):
        told = self.left.run("ping", "-q", "-c3", "-i0.05", "-w", str(seconds), "-I", here, there, check=False)
        return received(told) >= 3

    def says(self, at_least=0):
        """How often, some reviews later."""
        patience.wait_for(lambda: self.here.log().count(TOLD) >= at_least, self.here.log)
        time.sleep(0.7)
        return self.here.log().count(TOLD)


def lines(mode, here, there, inside, far):
    def template(sender, receiver):
        ends = f"src {sender.outer[4]} dst {receiver.outer[4]} " if mode == "tunnel" else ""
        return f"tmpl {ends}proto esp mode {mode}"

    states = [
        f"xfrm state add src {sender.outer[4]} dst {receiver.outer[4]} proto esp spi {receiver.spi} mode {mode} {KEY}"
        for sender, receiver in ((here, there), (there, here))
    ]
    return [
        *states,
        f"xfrm policy add src {inside} dst {far} dir out {template(here, there)}",
        f"xfrm policy add src {far} dst {inside} dir in {template(there, here)}",
    ]


@pytest.fixture
def network(uxfrm):
    with Checking(uxfrm) as made:
        yield made


@pytest.mark.parametrize(
    "mode, here, there",
    [("tunnel", "0.0.0.0/0", "0.0.0.0/0"), ("transport", f"{HERE.outer[4]}/32", f"{THERE.outer[4]}/32")],
    ids=["everything", "host-to-host"],
)
def test_what_the_kernel_drops_is_said_with_the_remedy(network, mode, here, there):
    ends = (HERE.inner[4], THERE.inner[4]) if mode == "tunnel" else (HERE.outer[4], THERE.outer[4])
    network.check(1)
    network.start(mode, here, there)
    assert not network.replies(*ends, seconds=1)
    assert network.says(at_least=1) == 1
    network.check(2)
    assert network.replies(*ends)
    network.here.stop()


@pytest.mark.parametrize("how", [0, 1, 2])
def test_nothing_is_said_where_nothing_is_dropped(network, how):
    """Peers don't send to an address that what is protected comes from, be it sent to them or
    everywhere."""
    network.check(how)
    network.start("tunnel", f"{HERE.inner[4]}/32", f"{THERE.inner[4]}/32" if how == 1 else "0.0.0.0/0")
    assert network.replies(HERE.inner[4], THERE.inner[4])
    assert network.says() == 0
    network.here.stop()


def test_a_full_tunnel_takes_what_comes_from_its_peer(network):
    """From a strict host as well (seen: it had to be told to check loosely)."""
    network.check(1)
    network.start("tunnel", f"{HERE.inner[4]}/32", "0.0.0.0/0")
    assert network.replies(HERE.inner[4], THERE.inner[4])
    assert network.says() == 0
    network.here.stop()
