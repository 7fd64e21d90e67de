"""Tunnels that pass a gateway in inline mode, whose packets its device joins (GRO): they are taken apart again and leave in ESP.

The network is test_inline's, with a tunnel of uxfrm's own between the hosts; test_tunnel_joined has what makes a veth join.
"""

import pytest

import echo
import prerequisite
import wire
from gateway import CONTROLLED, Gateway
from test_inline import HOSTS, InlineSites
from test_link import client, done
from test_tunnel_joined import GATHERING, INSIDE, JOINING

TCP_BYTES = 2_000_000
CASES = [("ipip", 4, 4), ("gre key 7 csum", 4, 6), ("sit", 4, 6), ("ip6gre csum", 6, 4)]


@pytest.mark.parametrize(("kind", "outer", "inner"), CASES, ids=lambda value: str(value))
def test_tcp_passes_a_tunnel_whose_packets_the_gateways_device_joins(kind, outer, inner, uxfrm):
    prerequisite.packet_filter()
    words, *options = kind.split()
    with InlineSites(uxfrm) as sites:
        sites.start()
        ends = HOSTS[outer]
        for number, host in enumerate((sites.left_host, sites.right_host)):
            gateway = Gateway(uxfrm, host)
            sites.callback(gateway.close)
            gateway.start(more=CONTROLLED)
            there = f"remote {ends[1 - number]} local {ends[number]}"
            done(client(uxfrm, host, "link")(f"add name tun1 up type {words} {there} ttl 64 {' '.join(options)}"))
            host.address("tun1", f"{INSIDE[inner][number]}/{30 if inner == 4 else 64}")
            host.ip("link set tun1 mtu 1300")
        for namespace, device in ((sites.left_host, "eth0"), (sites.left, "lan0"), (sites.right, "lan0"), (sites.right_host, "eth0")):
            namespace.run("ethtool", "-K", device, *JOINING.split())
            namespace.run("sh", "-c", GATHERING.replace("wire0", device))
        seen = sites.wire(sites.left, "lan0")
        with sites.left_host.entered():
            echo.transfer(*INSIDE[inner], TCP_BYTES)
        assert max(len(frame) for outgoing, frame in seen.seen() if not outgoing) > 3000, "nothing was joined"
        wire.assert_only("esp", sites.between.seen())
