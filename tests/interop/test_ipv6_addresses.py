"""Hosts whose own IPv6 is not as it is between gateways that are set up: link-local only, not
yet usable, or switched off."""

import time

import pytest

import patience
import topology
from gateway import CONTROLLED

POLICY = "policy add src ::/0 dst fd02::/64 dir out tmpl src 10.9.0.1 dst 10.9.0.2 proto esp mode tunnel"


class Alone(topology.TwoGateways):
    def _build(self, uxfrm):
        super()._build("wire0")
        self.left.address("wire0", "10.9.0.1/24")
        self.here = self.gateway(uxfrm, self.left)
        self._uxfrm = str(uxfrm)

    def xfrm(self, words):
        return self.left.run(self._uxfrm, "xfrm", *words.split(), check=False)

    def routes(self):
        return self.left.ip("-6 route show table 30000")


@pytest.fixture
def network(uxfrm):
    with Alone(uxfrm) as made:
        yield made


def test_a_link_local_address_is_no_source_for_a_tunnel(network):
    """Most hosts that have nothing but IPv4 have one on each device. The kernel takes no route
    with it."""
    assert "fe80:" in network.left.ip("-6 addr show dev wire0")
    network.here.start([], more=CONTROLLED)
    assert network.xfrm(POLICY) == ""
    assert "fd02::/64 dev uxfrm0" in network.routes() and " src " not in network.routes()
    network.here.stop()


def test_an_address_that_may_be_somebody_elses_is_a_source_once_it_is_not(network):
    """Duplicate address detection takes seconds; gateways start meanwhile."""
    network.left.run("sysctl", "-qw", *(f"net.ipv6.conf.{of}.accept_dad=1" for of in ("all", "wire0")))
    network.left.ip("addr add fd09::1/64 dev wire0")
    assert "tentative" in network.left.ip("-6 addr show dev wire0")
    network.here.start([f"xfrm {POLICY}"], more=CONTROLLED)
    assert "fd02::/64 dev uxfrm0" in network.routes()
    deadline = time.monotonic() + patience.SECONDS
    while "src fd09::1" not in network.routes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "src fd09::1" in network.routes()
    network.here.stop()


@pytest.mark.parametrize("lines", [[], [f"xfrm {POLICY}"]], ids=["later", "at-start"])
def test_policies_of_ipv6_are_taken_where_it_is_switched_off(network, lines):
    """As in most containers. A key manager that negotiates both versions failed as a whole."""
    network.left.run("sysctl", "-qw", *(f"net.ipv6.conf.{of}.disable_ipv6=1" for of in ("all", "default")))
    network.here.start(lines, more=CONTROLLED)
    if not lines:
        assert network.xfrm(POLICY) == ""
    assert "fd02::/64 dev uxfrm0" in network.routes()
    assert "inet6" not in network.left.ip("addr show")
    network.here.stop()


def test_who_switches_ipv6_off_on_the_tun_is_told_so(network):
    network.here.start([], more=CONTROLLED)
    network.left.run("sysctl", "-qw", "net.ipv6.conf.uxfrm0.disable_ipv6=1")
    assert "IPv6 is switched off there (net.ipv6.conf.DEVICE.disable_ipv6)" in network.xfrm(POLICY)
    network.here.stop()
