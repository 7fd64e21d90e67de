"""An attacker on the wire without keys, and fragments that come out of ESP.

He sees identifications, may send plain fragments with any addresses, and may send as many as he
likes. What he sends becomes no part of a protected datagram, and starves none.

    local      right ══ ESP ══ left: an address of its own, its own sockets
    forwarded  host right ── right ══ ESP ══ left ── host left, by the host's stack, with and without connection tracking, and in inline mode
                                       ▲
                                    attacker
"""

import contextlib
import socket
import struct
import time

import pytest

import patience
import prerequisite
import wire
from association import GCM_128, Association
from test_guard import Guarded
from test_guard_forwarded import HostModeSites
from test_inline import HOSTS, INLINE, PACKET, lines
from topology import HERE, THERE

try:
    from scapy.layers.inet import IP, UDP, fragment
    from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
    from scapy.layers.l2 import Ether
except ImportError:
    prerequisite.not_run("needs scapy: apt-get install python3-scapy python3-cryptography")

PORT = 7300
PIECE = 1000
LAST = 608
REPLACED = 3
SPRAYED = 6000  # more than the kernel keeps (net.ipv4.ipfrag_high_thresh, net.ipv6.ip6frag_high_thresh: 4 MiB)
SPRAYED_AGAIN = 500
ROUND = 23
COUNT_SECONDS = patience.SECONDS
TRACKING = """
table inet tracking {
    chain forward {
        type filter hook forward priority filter
        ct state invalid counter
    }
}
"""
UNTRACKED = """
table inet untracked {
    chain fragments {
        type filter hook prerouting priority -450
        iifname "uxfrm0" ip frag-off & 0x3fff != 0 notrack
        iifname "uxfrm0" exthdr frag exists notrack
    }
}
"""


class Attacked:
    """What all networks have in common: somebody who sends to somebody else through ESP, and a
    wire to forge on."""

    def send_protected(self, family, packets):
        """Whole IP packets, as they are, from the right through its gateway."""
        of = socket.AF_INET if family == 4 else socket.AF_INET6
        with self.sender.entered():
            raw = socket.socket(of, socket.SOCK_RAW, socket.IPPROTO_RAW)
        with raw:
            for packet in packets:
                raw.sendto(bytes(packet), (self.addresses[family][1], 0))

    def attack(self, packet):
        self.attacker.send(self.frame(packet))

    def frame(self, packet):
        return bytes(Ether(src=self.right.mac("wire0"), dst=self.left.mac("wire0")) / packet)

    def spray(self, family, ends, start, count):
        """Fragments from the midst of datagrams of which nothing else comes."""
        frame = bytearray(self.frame(pieces(family, ends, 0, payload() * 2)[1]))
        at = 14 + (4 if family == 4 else 44)
        for ident in range(start, start + count):
            # Below those of the good ones.
            struct.pack_into("!H", frame, at, ident & 0x7FFF)
            if family == 4:
                struct.pack_into("!H", frame, 24, 0)
                struct.pack_into("!H", frame, 24, checksum(frame[14:34]))
            self.attacker.send(bytes(frame))

    @contextlib.contextmanager
    def listening(self, family):
        of = socket.AF_INET if family == 4 else socket.AF_INET6
        with self.receiver.entered():
            made = socket.socket(of, socket.SOCK_DGRAM)
        with made:
            made.setsockopt(socket.SOL_SOCKET, wire.SO_RCVBUFFORCE, 8 << 20)
            made.bind((self.addresses[family][1], PORT))
            yield made

    def counted(self, at_least):
        """Waits until so many plain packets were dropped as what should have come in protected."""
        deadline = time.monotonic() + COUNT_SECONDS
        while (now := self.here.statistics().get("XfrmInTmplMismatch", 0)) < at_least and time.monotonic() < deadline:
            time.sleep(0.02)
        assert now >= at_least, self.here.stat()


class Local(Attacked, Guarded):
    """To the left gateway's own address."""

    def _build(self, uxfrm):
        super()._build(uxfrm)
        self.sender, self.receiver, self.attacker = self.right, self.left, self.forge
        self.addresses = {family: (THERE.inner[family], HERE.inner[family]) for family in (4, 6)}
        self.start_both()

    def start_both(self):
        both = [Association(GCM_128, "tunnel", family, 4) for family in (4, 6)]
        states = [line for association in both[:1] for line in association.states(HERE, THERE)]
        states = [line if "af-unspec" in line else f"{line} flag af-unspec" for line in states]
        for gateway, ends, guard in ((self.here, (HERE, THERE), "require"), (self.there, (THERE, HERE), "off")):
            gateway.start(states + [line for association in both for line in association.policies(*ends)], guard=guard)


class Forwarded(Attacked, HostModeSites):
    """To a host behind it."""

    more = ""

    def _build(self, uxfrm):
        super()._build(uxfrm)
        self.sender, self.receiver = self.right_host, self.left_host
        self.attacker = self.wire(self.right, "wire0")
        self.addresses = {family: HOSTS[family][::-1] for family in (4, 6)}
        self.here.start(lines(True), guard="require", more=self.more)
        self.there.start(lines(False), guard="off", more=self.more)
        for family in (4, 6):
            self.left_host.ping(*HOSTS[family])

    def filter(self, rules):
        self.left.run("nft", rules)


class Tracked(Forwarded):
    """Where connection tracking puts fragments together on the way."""

    def _build(self, uxfrm):
        super()._build(uxfrm)
        self.filter(TRACKING)


class Inline(Tracked):
    """Past the host's stack."""

    more = INLINE.format(PACKET)


NETWORKS = {"local": Local, "forwarded": Forwarded, "tracked": Tracked, "inline": Inline}


@pytest.fixture
def network(uxfrm, request):
    prerequisite.packet_filter()
    prerequisite.programs(nft="nftables")
    with NETWORKS[request.param](uxfrm) as made:
        yield made
        made.here.stop()


on = pytest.mark.parametrize("network", NETWORKS, indirect=True)
families = pytest.mark.parametrize("family", [4, 6])


def payload():
    """That of a datagram of two fragments."""
    return b"GOOD-FIRST" + bytes(PIECE - 8 - 10) + b"GOOD-LAST" + bytes(range(256)) * 2 + bytes(LAST - 9 - 512)


def evil():
    """Another second half with the same checksum: its 16-bit words in another order."""
    last = payload()[PIECE - 8 :]
    return payload()[: PIECE - 8] + b"".join(last[at : at + 2] for at in range(len(last) - 2, -2, -2))


def pieces(family, ends, ident, data):
    source, destination = ends
    upper = UDP(sport=9, dport=PORT) / data
    if family == 4:
        return fragment(IP(src=source, dst=destination, id=ident) / upper, PIECE)
    whole = IPv6(src=source, dst=destination) / IPv6ExtHdrFragment(id=ident << 16) / upper
    return fragment6(whole, 40 + 8 + PIECE)


def checksum(header):
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def received(listener, seconds, at_least=0):
    """All datagrams that come until none has come for so long, and at least so many."""
    found = []
    listener.settimeout(patience.SECONDS)
    while len(found) < at_least:
        found.append(listener.recv(65536))
    listener.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        while True:
            found.append(listener.recv(65536))
    return found


def test_evil_is_what_the_sum_does_not_tell():
    for family, ends in ((4, ("10.0.0.1", "10.0.0.2")), (6, ("fd00::1", "fd00::2"))):
        first, last = pieces(family, ends, 7, payload())
        other_first, other = pieces(family, ends, 7, evil())
        assert bytes(first) == bytes(other_first) and bytes(last) != bytes(other) and len(last) == len(other)


@families
@on
@pytest.mark.parametrize("order", ["evil first", "good first"])
def test_a_plain_fragment_becomes_no_part_of_a_protected_datagram(order, network, family):
    ends = network.addresses[family]
    with network.listening(family) as listener:
        for ident in range(0x8001, 0x8001 + REPLACED):
            first, last = pieces(family, ends, ident, payload())
            replaced = pieces(family, ends, ident, evil())[1]
            steps = [lambda: network.attack(replaced), lambda: network.send_protected(family, [first])]
            for step in steps if order == "evil first" else steps[::-1]:
                step()
                time.sleep(0.05)
            assert received(listener, 0.2) == [], "GOOD-FIRST and EVIL-PLAIN"
            network.send_protected(family, [last])
            assert received(listener, 0.2, at_least=1) == [payload()], network.here.stat()
        network.counted(REPLACED)


def hold_out(network, family, sprayed_ends, datagrams):
    """Sends datagrams of two fragments, and between them others' fragments; how many arrive."""
    ends = network.addresses[family]
    with network.listening(family) as listener:
        network.spray(family, sprayed_ends, 0, SPRAYED)
        arrived, sent, ident = [], 0, 0x8001
        while sent < datagrams:
            network.spray(family, sprayed_ends, SPRAYED + sent * ROUND, SPRAYED_AGAIN)
            some = min(ROUND, datagrams - sent)
            both = [pieces(family, ends, ident + number, payload()) for number in range(some)]
            network.send_protected(family, [piece for pair in both for piece in pair])
            sent, ident = sent + some, ident + some
            deadline = time.monotonic() + COUNT_SECONDS
            while len(arrived) < sent and time.monotonic() < deadline:
                arrived += received(listener, 0.05)
        assert all(data == payload() for data in arrived)
        return len(arrived)


@families
@on
def test_fragments_sprayed_between_protected_addresses_starve_nothing(network, family):
    assert hold_out(network, family, network.addresses[family], 506) == 506, network.here.stat()
    network.counted(SPRAYED)


@families
@pytest.mark.parametrize("network", ["local", "forwarded", "inline"], indirect=True)
def test_fragments_sprayed_between_others_starve_nothing(network, family):
    assert hold_out(network, family, strangers(network, family), 200) == 200, network.here.stat()


@families
@pytest.mark.parametrize("network", ["tracked"], indirect=True)
def test_what_is_not_tracked_is_not_starved_on_its_way(network, family):
    """What SECURITY.md has for gateways that track connections: room for others' fragments is
    the kernel's."""
    network.filter(UNTRACKED)
    assert hold_out(network, family, strangers(network, family), 200) == 200, network.here.stat()


def strangers(network, family):
    """Ends that no policy is for; what is sent there waits in the left gateway's kernel."""
    left = "10.9.0.1" if family == 4 else "fd09::1"
    if family == 6 and not isinstance(network, Local):
        network.left.address("wire0", "fd09::1/64")
    return ("10.9.0.77" if family == 4 else "fd09::77", left)
