"""Inline mode with a real Linux kernel as the other gateway.

        10.1.1.2  fd01:1::2
    ┌─ host ──┐      ┌─ namespace linux ────────────┐         ┌─ Linux 6.1, User-Mode Linux ─┐
    │    eth0 ┼──────┼ lan0     inline         tap0 ┼─────────┼─ vec0 10.9.0.2  fd09::2      │
    └─────────┘      └──────────────────────────────┘    ▲    │  lo   10.2.0.1  fd02::1      │
                      10.1.1.1  10.9.0.1  fd09::1       wire  └──────────────────────────────┘
"""

import dataclasses

import pytest

import echo
import prerequisite
import topology
import wire
from association import CBC_SHA256, GCM_128, Association, Side
from gateway import Gateway
from namespace import ping_command, veth
from topology import HERE, THERE

INLINE = """
[inline]
protected = "lan0"
wire = "tap0"
"""
BEHIND = Side(outer=HERE.outer, inner={4: "10.1.1.2", 6: "fd01:1::2"}, spi=HERE.spi)
TCP_BYTES = 256 * 1024
CASES = [
    Association(GCM_128, "tunnel", 4, 4),
    Association(GCM_128, "tunnel", 6, 6),
    Association(CBC_SHA256, "tunnel", 4, 6),
    Association(GCM_128, "tunnel", 4, 4, extra="encap espinudp 4500 4500 0.0.0.0"),
    Association(CBC_SHA256, "tunnel", 4, 4, extra="replay-window 128 flag esn"),
]


class InlineAndLinux(topology.UxfrmAndLinux):
    """`UxfrmAndLinux` with a host behind uxfrm."""

    def _build(self):
        super()._build()
        self.host = self.namespace("host")
        veth(self.here, "lan0", self.host, "eth0")
        self.here.address("lan0", "10.1.1.1/24", "fd01:1::1/64")
        self.host.address("eth0", "10.1.1.2/24", "fd01:1::2/64")
        self.host.ip("route add default via 10.1.1.1")
        self.host.ip("-6 route add default via fd01:1::1")
        self.here.ip(f"route add {THERE.inner[4]} via {THERE.outer[4]}")
        self.here.ip(f"-6 route add {THERE.inner[6]} via {THERE.outer[6]}")
        self.here.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        self.linux.run(
            f"""ip route add 10.1.1.0/24 via {HERE.outer[4]} src {THERE.inner[4]}
            ip route add fd01:1::/64 via {HERE.outer[6]} src {THERE.inner[6]}"""
        )
        self.echo(self.host)

    def assert_protected(self, association):
        """Pings and TCP both ways between the host and Linux: on the wire is nothing but ESP."""
        self.between.seen()
        here, there = association.endpoints(BEHIND), association.endpoints(THERE)
        self.host.ping(here, there)
        self.linux.run(ping_command(there, here, echo.MARKER))
        with self.host.entered():
            echo.transfer(here, there, TCP_BYTES)
        self.linux.transfer(there, here, TCP_BYTES)
        wire.assert_only("esp-in-udp" if "encap" in association.extra else "esp", self.between.seen())


@pytest.fixture(scope="module")
def network():
    prerequisite.root()
    prerequisite.packet_filter()
    prerequisite.linux_peer()
    with InlineAndLinux() as made:
        yield made


@pytest.mark.parametrize("association", CASES, ids=lambda case: f"{case}-{case.extra.split(' ')[0] or 'plain'}")
def test_ping_and_tcp(association, uxfrm, network):
    keyed = dataclasses.replace(association, reqid=7)
    lines = keyed.lines(BEHIND, THERE)
    forwarded = [line.replace(" dir in ", " dir fwd ") for line in lines if " dir in " in line]
    gateway = Gateway(uxfrm, network.here)
    try:
        gateway.start(lines + forwarded, more=INLINE)
        network.linux.xfrm(keyed.lines(THERE, BEHIND))
        network.assert_protected(keyed)
        gateway.stop()
    finally:
        gateway.close()
