"""Tunnels without UDP on devices that join packets, as network cards do (GRO): TCP within them
passes.

Linux joins what is in IPIP, SIT and GRE by its inner TCP, and gives raw sockets the whole: up to
64 KiB, with the inner checksum left open, and GRE's that of the first packet. A veth joins only
where it does no segmentation of its own, and waits for more only where it is told to.
"""

import pytest

import echo
import topology
from gateway import CONTROLLED, Gateway
from test_link import client, done
from test_tunnel import drops
from topology import HERE, THERE

TCP_BYTES = 4_000_000
JOINING = "gro on tso off tx-tcp-mangleid-segmentation off tx-tcp-ecn-segmentation off tx-tcp6-segmentation off"
GATHERING = "cd /sys/class/net/wire0 && echo 200000 > gro_flush_timeout && echo 10 > napi_defer_hard_irqs"
INSIDE = {4: ("172.16.9.1", "172.16.9.2"), 6: ("fd55::1", "fd55::2")}
CASES = [
    ("ipip", 4, 4),
    ("gre", 4, 4),
    ("gre key 7 csum", 4, 6),
    ("sit", 4, 6),
    ("ip6tnl mode any", 6, 4),
    ("ip6gre csum", 6, 6),
]


@pytest.mark.parametrize(("kind", "outer", "inner"), CASES, ids=lambda value: str(value))
def test_tcp_passes_a_tunnel_whose_packets_a_device_joins(kind, outer, inner, uxfrm):
    words, *options = kind.split()
    with topology.TwoGateways("wire0") as two:
        gateways = [Gateway(uxfrm, namespace) for namespace in (two.left, two.right)]
        sides = [(two.left, HERE, THERE), (two.right, THERE, HERE)]
        for number, (namespace, here, there) in enumerate(sides):
            topology.place(namespace, "wire0", here)
            namespace.run("ethtool", "-K", "wire0", *JOINING.split())
            namespace.run("sh", "-c", GATHERING)
            two.callback(gateways[number].close)
            gateways[number].start(more=CONTROLLED)
            ends = f"remote {there.outer[outer]} local {here.outer[outer]}"
            done(client(uxfrm, namespace, "link")(f"add name tun1 up type {words} {ends} ttl 64 {' '.join(options)}"))
            namespace.address("tun1", f"{INSIDE[inner][number]}/{30 if inner == 4 else 64}")
        two.between.seen()
        with two.left.entered():
            echo.transfer(*INSIDE[inner], TCP_BYTES)
        arrived = [len(frame) for outgoing, frame in two.between.seen() if not outgoing]
        assert max(arrived) > 3000, "nothing was joined: the test shows nothing"
        assert [drops(gateway) for gateway in gateways] == [{}, {}]
