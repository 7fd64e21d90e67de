"""Inline mode: IPv6 routing headers of hosts behind the gateway, which lead a packet to what is
protected by way of somebody else.

    host left ── left: policy out fd01::/64 → fd02::/64 ── wire
"""

import socket
import time

import pytest

import patience
import prerequisite
from test_inline import HOSTS, INLINE, PACKET, InlineSites, lines

try:
    from scapy.layers.inet import UDP
    from scapy.layers.inet6 import IPv6
    from scapy.layers.l2 import Ether
    from scapy.packet import Raw
except ImportError:
    prerequisite.not_run("needs scapy: apt-get install python3-scapy python3-cryptography")

BY, ELSEWHERE = "fd88::1", "fd77::1"
MARKER = b"LED-ON-BY-A-HEADER!!"
SECONDS = patience.SECONDS
END = HOSTS[6][1]


def routing(following, kind, left, last, *stops):
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, stop) for stop in stops)
    return bytes([following, len(addresses) // 8, kind, left, last, 0, 0, 0]) + addresses


OPTIONS = bytes([43, 0, 1, 4, 0, 0, 0, 0])
ATOMIC = bytes([17, 0, 0, 0, 0, 0, 0, 7])
DONE = routing(43, 0, 0, 0, BY)
LED = {
    "segments": (43, routing(17, 4, 1, 1, END, BY)),
    "segments behind a header that is done with": (43, DONE + routing(17, 4, 1, 1, END, BY)),
    "two segment lists": (43, routing(43, 4, 1, 1, ELSEWHERE, BY) + routing(17, 4, 1, 1, END, ELSEWHERE)),
    "a source route": (43, routing(17, 0, 1, 0, END)),
    "a source route of two": (43, routing(17, 0, 2, 0, ELSEWHERE, END)),
    "before an atomic fragment": (43, routing(44, 4, 1, 1, END, BY) + ATOMIC),
    "behind hop-by-hop options, before an atomic fragment": (0, OPTIONS + routing(44, 4, 1, 1, END, BY) + ATOMIC),
    "of a type that nobody knows": (43, routing(17, 253, 1, 0, ELSEWHERE)),
}


def packet(first, headers):
    upper = bytes(IPv6(src=HOSTS[6][0], dst=END) / UDP(sport=9, dport=7300) / MARKER)[40:]
    return IPv6(src=HOSTS[6][0], dst=BY, nh=first) / Raw(headers + upper)


# Where a policy asks for ports, fragments are put together first.
BESIDE = ["", "xfrm policy add src fd01::/64 dst fd88::/64 proto tcp dport 80 dir out action block"]


@pytest.mark.parametrize("beside", BESIDE, ids=["alone", "beside a policy for a port"])
def test_no_routing_header_leads_plain_packets_to_what_is_protected(beside, uxfrm):
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites:
        sites.left.address("wire0", "fd09::1/64")
        sites.left.neighbour("wire0", sites.right.mac("wire0"), "fd09::2")
        sites.left.ip("-6 route add default via fd09::2")
        sites.here.start([*lines(True), *([beside] if beside else [])], more=INLINE.format(PACKET))
        host = sites.wire(sites.left_host, "eth0")
        head = Ether(src=sites.left_host.mac("eth0"), dst=sites.left.mac("lan0"))

        def leave(first, headers):
            """How many leave plain, up to one that may."""
            sites.between.seen()
            host.send(bytes(head / packet(first, headers)))
            free, seen, deadline = bytes(head / packet(17, b"")), [], time.monotonic() + SECONDS
            while not any(outgoing and frame[54:] == free[54:] for outgoing, frame in seen):
                assert time.monotonic() < deadline, sites.here.stat()
                host.send(free)
                time.sleep(0.02)
                seen += sites.between.seen()
            return sum(outgoing and MARKER in frame and frame[54:] != free[54:] for outgoing, frame in seen)

        assert leave(43, routing(17, 4, 1, 1, ELSEWHERE, BY)) == 1, "elsewhere they may"
        assert leave(43, routing(17, 4, 0, 1, END, BY)) == 1, "it leads nowhere any more"
        left = {name: leave(*led) for name, led in LED.items()}
        assert not any(left.values()), (left, sites.here.stat())
        assert sites.here.statistics()["XfrmOutError"] == len(LED)
        sites.here.stop()
