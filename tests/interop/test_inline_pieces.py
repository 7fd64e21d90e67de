"""Inline mode: plain pieces of packets that somebody without keys sends into the protected network.

host left ── left: policies fwd that ask for a port, or for a protocol ── attacker, with the
addresses of what is behind the right gateway

Ports are in the first piece only, and a later IPv6 piece says of its protocol whatever its
sender wants. None may come through, as each could become a part of a datagram: of the attacker's
own, or of one that came in ESP.
"""

import socket
import time

import pytest

import patience
import prerequisite
from test_inline import HOSTS, INLINE, PACKET, InlineSites, lines

try:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
    from scapy.layers.inet6 import PadN
    from scapy.layers.l2 import Ether
    from scapy.packet import Raw
except ImportError:
    prerequisite.not_run("needs scapy: apt-get install python3-scapy python3-cryptography")

PORT = 7300
MARKER = b"PLAIN-FROM-THE-WIRE!"
LAST = b"THAT-WAS-ALL-OF-THEM"
FREE = 253  # a protocol that no policy asks for (RFC 3692)
SECONDS = patience.SECONDS
HERE, FAR = 0, 1


def upper(family):
    ends = HOSTS[family]
    layer = IP if family == 4 else IPv6
    return bytes((layer(src=ends[FAR], dst=ends[HERE]) / UDP(sport=9, dport=PORT) / (MARKER * 4)))[20 if family == 4 else 40 :]


def v4(payload, protocol=17, **fields):
    return IP(src=HOSTS[4][FAR], dst=HOSTS[4][HERE], proto=protocol, id=7, **fields) / Raw(payload)


def v6(payload, protocol, *headers):
    """With headers, of which the last one says what protocol follows."""
    packet = IPv6(src=HOSTS[6][FAR], dst=HOSTS[6][HERE])
    for header in headers:
        packet /= header
    if headers:
        packet[type(headers[-1])].nh = protocol
    else:
        packet.nh = protocol
    return packet / Raw(payload)


def piece(offset, more, ident=7):
    return IPv6ExtHdrFragment(offset=offset // 8, m=more, id=ident)


def padding():
    return IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 4)])


def whole_but_for_its_form(family):
    """Datagrams to the port, each in one or more packets that are no plain whole ones."""
    data = upper(family)
    if family == 4:
        return {
            "two": [v4(data[:40], flags="MF"), v4(data[40:], frag=5)],
            "tiny": [v4(data[:8], flags="MF"), v4(data[8:], frag=1)],
            "reversed": [v4(data[40:], frag=5), v4(data[:40], flags="MF")],
            "with options": [v4(data[:8], flags="MF", options=b"\1\1\1\0"), v4(data[8:], frag=1)],
            "that are not to be cut": [v4(data[:8], flags="DF+MF"), v4(data[8:], flags="DF", frag=1)],
        }
    hop = IPv6ExtHdrHopByHop(options=[PadN(optdata=b"\0" * 4)])
    options = bytes([17, 0, 1, 4, 0, 0, 0, 0])
    return {
        "two": [v6(data[:40], 17, piece(0, 1)), v6(data[40:], 17, piece(40, 0))],
        "three": [v6(data[:8], 17, piece(0, 1)), v6(data[8:48], 17, piece(8, 1)), v6(data[48:], 17, piece(48, 0))],
        "reversed": [v6(data[40:], 17, piece(40, 0)), v6(data[:40], 17, piece(0, 1))],
        "atomic": [v6(data, 17, piece(0, 0))],
        "atomic around options": [v6(options + data, 60, piece(0, 0))],
        "atomic behind hop-by-hop options": [v6(data, 17, hop, piece(0, 0))],
        "behind options": [v6(data[:40], 17, padding(), piece(0, 1)), v6(data[40:], 17, padding(), piece(40, 0))],
        "around options": [v6(options + data[:40], 60, piece(0, 1)), v6(data[40:], 60, piece(48, 0))],
    }


def pieces_of_any_protocol(family):
    """What a policy for a protocol must stop besides: pieces that are of another one, as they
    say."""
    if family == 4:
        return {}
    data = upper(6)[40:]
    later = {f"later, of {number}": [v6(data, number, piece(40, 0))] for number in (0, 6, 17, 43, 44, 50, 51, 60, 99, 255)}
    # The first header of the chain is cut, so that nobody knows what comes behind it.
    cut = bytes([17, 1, 0x1E, 12]) + bytes(12)
    for name, order in (("first within its headers", 1), ("the same, reversed", -1)):
        later[name] = [v6(cut[:8], 60, piece(0, 1)), v6(cut[8:] + upper(6), 60, piece(8, 0))][::order]
    return later


@pytest.fixture
def sites(uxfrm):
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as made:
        yield made
        made.here.stop()


class Through:
    """Sends frames to the left gateway's wire and sees what of them comes out for its host."""

    def __init__(self, sites):
        self.sites = sites
        self.attacker = sites.wire(sites.right, "wire0")
        self.host = sites.wire(sites.left_host, "eth0")

    def send(self, packet):
        self.attacker.send(bytes(Ether(src=self.sites.right.mac("wire0"), dst=self.sites.left.mac("wire0")) / packet))

    def come(self, family, packets):
        """How many of the packets come out, up to one that may pass."""
        self.host.seen()
        for packet in packets:
            self.send(packet)
        last = v4(LAST, FREE) if family == 4 else v6(LAST, FREE)
        seen, deadline = [], time.monotonic() + SECONDS
        while not any(LAST in frame for frame in seen):
            assert time.monotonic() < deadline, self.sites.here.stat()
            self.send(last)
            time.sleep(0.02)
            seen += [frame for outgoing, frame in self.host.seen() if not outgoing]
        source = socket.inet_pton(socket.AF_INET if family == 4 else socket.AF_INET6, HOSTS[family][FAR])
        return sum(LAST not in frame and source in frame[14:54] for frame in seen)


ASKING = {"for a port": f"proto udp dport {PORT}", "for a protocol": "proto udp"}


def start(sites, asks, others=()):
    """With policies that ask for that, and those that let pass before."""
    policies = [line.replace(" dir fwd", f" {asks} dir fwd priority 9") for line in lines(True)]
    sites.here.start([*policies, *others], more=INLINE.format(PACKET))
    for family in (4, 6):
        sites.left.run("ping", "-c1", "-W5", HOSTS[family][HERE])
    return Through(sites)


@pytest.mark.parametrize("asks", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize("family", [4, 6])
def test_plain_pieces_do_not_pass_a_policy_that_may_be_for_them(family, asks, sites):
    everything = whole_but_for_its_form(family) | pieces_of_any_protocol(family)
    through = start(sites, asks)
    assert through.come(family, [v4(b"x" * 40, FREE) if family == 4 else v6(b"x" * 40, FREE)]) == 1, "it shows what passes"
    passed = {name: through.come(family, packets) for name, packets in everything.items()}
    assert not any(passed.values()), (passed, sites.here.stat())
    assert sites.here.statistics()["XfrmInTmplMismatch"] >= len(everything) - 2


def test_a_policy_that_lets_a_protocol_pass_takes_no_later_piece_by_it(sites):
    """Its next header is the attacker's word, and it would be joined to what came in ESP."""
    net = [f"xfrm policy add src fd02::/64 dst fd01::/64 proto {one} dir fwd priority 1 action allow" for one in (6, FREE)]
    through = start(sites, "", net)
    data = upper(6)[40:]
    assert through.come(6, [v6(data, 6, piece(40, 0)), v6(data, FREE, piece(40, 0))]) == 0, sites.here.stat()
    # Of a first piece it is known.
    assert through.come(6, [v6(data, FREE, piece(0, 1))]) == 1


@pytest.mark.parametrize("family", [4, 6])
def test_pieces_pass_where_no_policy_may_be_for_them(family, sites):
    """A policy for a port elsewhere, and one that lets all of the two networks pass before it."""
    nets = {4: ("10.2.0.0/24", "10.1.0.0/24"), 6: ("fd02::/64", "fd01::/64")}[family]
    let = f"xfrm policy add src {nets[0]} dst {nets[1]} dir fwd priority 1 action allow"
    through = start(sites, ASKING["for a port"], [let])
    two = whole_but_for_its_form(family)["two"]
    assert through.come(family, two) == len(two), sites.here.stat()
