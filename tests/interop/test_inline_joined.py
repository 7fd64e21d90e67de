"""Tunnels that pass a gateway in inline mode, whose packets its device joins (GRO): they are taken
apart again and leave in ESP.

The network is test_inline's, with a tunnel of uxfrm's own between the hosts; test_tunnel_joined
has what makes a veth join.
"""

import socket

import pytest

import echo
import patience
import prerequisite
import wire
from gateway import CONTROLLED, Gateway
from test_inline import HOSTS, InlineSites
from test_link import client, done
from test_tunnel_joined import GATHERING, INSIDE, JOINING

TCP_BYTES = 2_000_000
UDP_SEGMENT = 103
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


@pytest.mark.parametrize(("outer", "inner", "words"), [(4, 4, "udpcsum"), (4, 6, "noudpcsum"), (6, 4, "udpcsum"), (6, 6, "udp6zerocsumtx udp6zerocsumrx")])
def test_tcp_and_udp_pass_a_vxlan_whose_super_packets_the_sender_leaves_whole(outer, inner, words, uxfrm):
    """A veth, as what virtual machines send by, takes what is within UDP whole: the gateway cuts
    it."""
    prerequisite.packet_filter()
    prerequisite.links("vxlan", "id", "7", "dstport", "4789")
    with InlineSites(uxfrm) as sites:
        sites.start()
        ends = HOSTS[outer]
        for number, host in enumerate((sites.left_host, sites.right_host)):
            there = f"remote {ends[1 - number]} local {ends[number]}"
            host.ip(f"link add vx1 up mtu 1300 type vxlan id 7 dstport 4789 dev eth0 {there} {words}")
            host.address("vx1", f"{INSIDE[inner][number]}/{30 if inner == 4 else 64}")
        seen = sites.wire(sites.left, "lan0")
        with sites.left_host.entered():
            echo.transfer(*INSIDE[inner], TCP_BYTES)
        assert max(len(frame) for outgoing, frame in seen.seen() if not outgoing) > 3000, "nothing was joined"
        wire.assert_only("esp", sites.between.seen())
        datagrams(sites, *INSIDE[inner])
        for gateway in (sites.left, sites.right):
            reasons = gateway.run(str(uxfrm), "stat", "--reasons").splitlines()
            counts = dict(line.split() for line in reasons)
            assert (counts["forward_super"], counts["forward_malformed"]) == ("0", "0")


def datagrams(sites, here, there):
    """Fifty at a time, of 1000 bytes each, which the sender's kernel leaves whole as well."""
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    sent = [bytes([number]) * 1000 for number in range(50)]
    with sites.right_host.entered():
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    with sites.left_host.entered():
        sender = socket.socket(family, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind((there, 7300))
        receiver.settimeout(patience.SECONDS)
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
        sender.sendto(b"".join(sent), (there, 7300))
        assert [receiver.recv(2000) for _ in sent] == sent
