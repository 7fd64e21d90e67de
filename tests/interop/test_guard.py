"""The inbound guard: what the policies want protected is not taken in the clear, whoever sent it.

The network is test_lifecycle's: two namespaces that reach each other without uxfrm. The test
itself forges plain packets on the right side's device, with addresses that the policies of the
left side protect. A socket on the left, which sees all that the host takes in, must not see
them; uxfrm must have counted them; and what comes in through ESP passes.
"""

import contextlib
import socket
import time

import pytest

import echo
import patience
import prerequisite
import topology
from association import GCM_128, Association
from namespace import veth
from topology import HERE, THERE

try:
    from scapy.layers.inet import ICMP, IP, TCP, UDP, fragment
    from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, IPv6, IPv6ExtHdrFragment, fragment6
    from scapy.layers.l2 import Ether
except ImportError:
    prerequisite.not_run("needs scapy: apt-get install python3-scapy python3-cryptography")

PORT = 7100
SPOOF = b"FORGED" * 8
COUNT_SECONDS = patience.SECONDS
CASES = [Association(GCM_128, mode, family, family) for mode in ("tunnel", "transport") for family in (4, 6)]


class Guarded(topology.PlacedGateways):
    """Left and right with uxfrm each, and a wire at the right end to forge from."""

    def _build(self, uxfrm):
        super()._build()
        self.forge = self.wire(self.right, "wire0")
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)
        self._uxfrm = uxfrm

    def start(self, association):
        self.protect(association.lines(HERE, THERE))
        self.there.start(association.lines(THERE, HERE))

    def protect(self, lines):
        """Starts the left gateway, the one under test; it says so if it can't guard."""
        self.here.start(lines, guard="require")

    def send(self, packet):
        """A plain packet, straight onto the wire."""
        self.forge.send(bytes(Ether(src=self.right.mac("wire0"), dst=self.left.mac("wire0")) / packet))

    def counter(self, name):
        text = self.left.run(str(self._uxfrm), "stat")
        return next(int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name)

    def wait_for(self, name, expected):
        deadline = time.monotonic() + COUNT_SECONDS
        while (now := self.counter(name)) < expected and time.monotonic() < deadline:
            time.sleep(0.02)
        assert now == expected, f"{name} is {now}, not {expected}"


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Guarded(uxfrm) as made:
        yield made


@contextlib.contextmanager
def listening(namespace, family):
    """Sockets that take all that the host takes in: a datagram socket, and raw ones for TCP and
    ICMP."""
    of, icmp = (socket.AF_INET, 1) if family == 4 else (socket.AF_INET6, 58)
    with contextlib.ExitStack() as stack, namespace.entered():
        datagrams = stack.enter_context(socket.socket(of, socket.SOCK_DGRAM))
        datagrams.bind(("", PORT))
        raw = [stack.enter_context(socket.socket(of, socket.SOCK_RAW, number)) for number in (6, icmp)]
        sockets = [datagrams, *raw]
        for each in sockets:
            each.setblocking(False)
        yield sockets


def heard(sockets):
    """All that came in and is forged."""
    found = []
    for each in sockets:
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(each.recv(65536))
    return [packet for packet in found if SPOOF[:6] in packet]


def arrived(sockets, count):
    """All that came in and is forged, once it is so much."""
    found = []

    def has_come():
        found.extend(heard(sockets))
        return len(found) >= count

    patience.wait_for(has_come, lambda: f"{len(found)} of {count} came")
    return found


def forged(association):
    """One packet of each kind, from where the policy wants ESP; and one in fragments."""
    source, destination = association.endpoints(THERE), association.endpoints(HERE)
    ip, ping = (IP, ICMP()) if association.inner == 4 else (IPv6, ICMPv6EchoRequest())
    plain = ip(src=source, dst=destination)
    return [
        plain / UDP(sport=9, dport=PORT) / SPOOF,
        plain / UDP(sport=500, dport=PORT) / SPOOF,
        plain / TCP(sport=9, dport=echo.PORT, flags="S") / SPOOF,
        plain / ping / SPOOF,
    ]


def fragments(association):
    source, destination = association.endpoints(THERE), association.endpoints(HERE)
    upper = UDP(sport=9, dport=PORT) / (SPOOF * 30)
    if association.inner == 4:
        return fragment(IP(src=source, dst=destination) / upper, 1000)
    return fragment6(IPv6(src=source, dst=destination) / IPv6ExtHdrFragment(id=7) / upper, 1000)


def send_all(network, association):
    """How many packets that are, fragments put together."""
    for packet in forged(association) + fragments(association):
        network.send(packet)
    return len(forged(association)) + 1


def drops(association):
    """How often they count: fragments one by one, but where the policy is for the ends of ESP,
    to which IKE may send fragments."""
    pieces = len(fragments(association)) if association.mode == "tunnel" else 1
    return len(forged(association)) + pieces


def exchange(network, association):
    """Ping and TCP through ESP, from the left and from the right."""
    left, right = association.endpoints(HERE), association.endpoints(THERE)
    network.left.ping(left, right)
    network.right.ping(right, left)
    with network.right.entered():
        echo.transfer(right, left, 100_000)


@pytest.mark.parametrize("association", CASES, ids=str)
def test_forged_packets_arrive_where_nobody_guards(association, network):
    """The counter-test: without uxfrm all of them are taken in."""
    with listening(network.left, association.inner) as sockets:
        sent = send_all(network, association)
        assert len(arrived(sockets, sent)) == sent


@pytest.mark.parametrize("association", CASES, ids=str)
def test_forged_packets_are_dropped_and_counted(association, network):
    network.start(association)
    exchange(network, association)
    assert network.counter("XfrmInTmplMismatch") == 0, "what came through ESP is no forgery"
    with listening(network.left, association.inner) as sockets:
        send_all(network, association)
        network.wait_for("XfrmInTmplMismatch", drops(association))
        assert heard(sockets) == []
    exchange(network, association)
    network.here.stop()


@pytest.mark.parametrize("association", CASES, ids=str)
def test_the_guard_outlives_a_crash_and_ends_with_sigterm(association, network):
    network.start(association)
    network.here.kill()
    with listening(network.left, association.inner) as sockets:
        sent = send_all(network, association)
        time.sleep(0.3)
        assert heard(sockets) == []
        network.protect(association.lines(HERE, THERE))
        assert network.counter("XfrmInTmplMismatch") == 0
        exchange(network, association)
        send_all(network, association)
        network.wait_for("XfrmInTmplMismatch", drops(association))
        assert heard(sockets) == []
        network.here.stop()
        send_all(network, association)
        assert len(arrived(sockets, sent)) == sent, "after SIGTERM the host is as it was"


@pytest.mark.parametrize("guard", ["off", "require"])
def test_what_a_crash_left_goes_with_the_next_start(guard, network):
    """Also where that has no guard, or had another TUN before. What only has such a name stays."""
    prerequisite.programs(nft="nftables")
    association = CASES[0]
    network.protect(association.lines(HERE, THERE))
    network.here.kill()
    for name, counter in (("old0", "in_unprotected"), ("mine", "mine")):
        network.left.run("nft", f"add table inet uxfrm-{name}; add counter inet uxfrm-{name} {counter}")
    tables = network.left.run("nft", "list", "tables").split("table inet ")
    assert len(tables) == 1 + 3
    network.here.start([], guard=guard)
    with listening(network.left, association.inner) as sockets:
        sent = send_all(network, association)
        assert len(arrived(sockets, sent)) == sent, "no policy is for them"
    network.here.stop()
    assert network.left.run("nft", "list", "tables").strip() == "table inet uxfrm-mine"


def test_policies_without_esp(network):
    """Block, allow and optional templates, in their order; the default, and what it must not cut
    off."""
    source, destination = THERE.outer[4], HERE.outer[4]
    template = f"tmpl src {source} dst {destination} proto esp mode transport level use"
    between = f"src {source} dst {destination}"
    network.protect(
        [
            f"xfrm policy add {between} proto udp dport {PORT} dir in priority 1 mark 1 mask 1 action block",
            f"xfrm policy add {between} proto udp sport 1 dport {PORT} dir in priority 2 action block",
            f"xfrm policy add {between} proto udp sport 2 dport {PORT} dir in priority 2",
            f"xfrm policy add {between} proto udp sport 3 dport {PORT} dir in priority 2 {template}",
            f"xfrm policy add {between} proto icmp type 8 code 0 dir in priority 2 action block",
            "xfrm policy setdefault in block",
        ]
    )
    plain = IP(src=source, dst=destination)
    with listening(network.left, 4) as sockets:
        for port in (1, 2, 3, 4):
            network.send(plain / UDP(sport=port, dport=PORT) / SPOOF / str(port))
        network.send(plain / ICMP() / SPOOF)
        network.wait_for("XfrmInPolBlock", 2)
        network.wait_for("XfrmInNoPols", 1)
        assert [packet[-1:] for packet in arrived(sockets, 2)] == [b"2", b"3"]
    network.here.stop()


def test_the_guard_follows_policies_that_end(network):
    """A policy's hard limit takes its rule away; what was counted stays counted."""
    source, destination = THERE.outer[4], HERE.outer[4]
    between = f"src {source} dst {destination}"
    network.protect([f"xfrm policy add {between} proto udp dport {PORT} dir in action block limit time-hard 2"])
    packet = IP(src=source, dst=destination) / UDP(sport=9, dport=PORT) / SPOOF
    with listening(network.left, 4) as sockets:
        network.send(packet)
        network.wait_for("XfrmInPolBlock", 1)
        deadline = time.monotonic() + COUNT_SECONDS
        while not heard(sockets) and time.monotonic() < deadline:
            time.sleep(0.1)
            network.send(packet)
        assert time.monotonic() < deadline, "the rule outlives its policy"
        counted = network.counter("XfrmInPolBlock")
        network.send(packet)
        time.sleep(0.2)
        assert network.counter("XfrmInPolBlock") == counted >= 1
    network.here.stop()


def test_neighbours_are_found_under_a_policy_from_host_to_host(network):
    """IPv6 finds a neighbour by ICMPv6, which the policy would have in ESP, which needs the
    neighbour. But only what comes from the link, with a hop limit of 255, is that."""
    association = Association(GCM_128, "transport", 6, 6)
    network.start(association)
    for namespace, address in ((network.left, THERE.outer[6]), (network.right, HERE.outer[6])):
        namespace.ip(f"neigh del {address} dev wire0")
    network.left.ping(HERE.outer[6], THERE.outer[6])
    assert network.counter("XfrmInTmplMismatch") == 0
    network.send(IPv6(src=THERE.outer[6], dst=HERE.outer[6], hlim=64) / ICMPv6ND_NS(tgt=HERE.outer[6]))
    network.wait_for("XfrmInTmplMismatch", 1)
    network.here.stop()


def test_forwarded_packets_follow_fwd(network):
    """A host behind the left gateway: `fwd` decides about what goes through it, `in` does not."""
    behind = network.namespace("behind")
    veth(network.left, "lan0", behind, "lan0")
    network.left.address("lan0", "10.5.0.1/24")
    behind.address("lan0", "10.5.0.2/24")
    behind.ip("route add default via 10.5.0.1")
    network.left.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0")
    template = f"tmpl src {THERE.outer[4]} dst {HERE.outer[4]} proto esp mode tunnel"
    network.protect(
        [
            f"xfrm policy add src 10.2.0.0/16 dst 10.5.0.0/24 dir fwd {template}",
            "xfrm policy add src 10.9.0.0/24 dst 10.5.0.0/24 dir in action block",
        ]
    )
    with listening(behind, 4) as sockets:
        for source in (THERE.inner[4], THERE.outer[4]):
            network.send(IP(src=source, dst="10.5.0.2") / UDP(sport=9, dport=PORT) / SPOOF / source)
        network.wait_for("XfrmInTmplMismatch", 1)
        assert [packet[len(SPOOF) :] for packet in arrived(sockets, 1)] == [THERE.outer[4].encode()]
        assert network.counter("XfrmInPolBlock") == 0


def test_without_the_guard_nothing_is_kept_out(network):
    """`guard = "off"` is off: the operator's own filter is in charge."""
    association = CASES[0]
    network.here.start(association.lines(HERE, THERE), guard="off")
    with listening(network.left, 4) as sockets:
        sent = send_all(network, association)
        assert len(arrived(sockets, sent)) == sent
    network.here.stop()
