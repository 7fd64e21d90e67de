"""ICMP errors of a gateway quote what they are about: what came in ESP is not told in plain, and
what came plain is.

On the right a gateway whose address on the wire no policy names. A host behind the left one sends
what the right one's kernel has to tell of: the hop limit, routes that refuse, a neighbour that is
not there, a link that takes less, a closed port. On this host's side of the right gateway, and from
the left one past the tunnel, the same is told of plain packets.
"""

import re
import socket
import struct

import pytest

import echo
import patience
import prerequisite
import topology
import wire
from gateway import Gateway
from namespace import veth
from test_tun_mtu import HOSTS, HUB_NETS, hub_lines, hub_site_lines, site_lines

OUTER6 = ("fd09::1", "fd09::2")
# Of all addresses of the right gateway the most like those behind the left one: IPv6 tells from it.
TELLS6 = "fd01:8000::1"
# Of the left gateway, and in no policy.
PLAIN = {4: "10.8.0.1", 6: "fd08::1"}
# Behind the right gateway: no neighbour there, routes that refuse, a link that takes less.
NOBODY = {4: "10.2.0.77", 6: "fd02::77"}
PROHIBITED = {4: "10.2.0.88", 6: "fd02::88"}
UNREACHABLE = {4: "10.2.0.99", 6: "fd02::99"}
BLACKHOLE = {4: "10.2.0.111", 6: "fd02::111"}
NARROW = {4: "10.2.0.122", 6: "fd02::122"}
OWN = {4: "10.2.0.1", 6: "fd02::1"}
NARROW_MTU = 1300
CLOSED_PORT = 4711
REASON = "out_quotes_protected"
# IPv4 alone has sources of errors that policies for ICMP leave out: the quoted packet's destination.
ONLY_UDP = "proto udp"
REDIRECT, REDIRECT_V6 = 5, 137


def flag(family):
    return "-6 " if family == 6 else ""


class Quoting(topology.Sites):
    names = "quotes-"

    def _build(self, uxfrm, guard="require", words=""):
        super()._build()
        self._uxfrm = uxfrm
        for number, namespace in enumerate((self.left, self.right)):
            namespace.address("wire0", f"{OUTER6[number]}/64")
            namespace.ip(f"-6 route add default via {OUTER6[1 - number]}")
            # So that the kernel tells as often as it is asked to.
            namespace.run("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0")
        self.left.address("lo", f"{PLAIN[4]}/32", f"{PLAIN[6]}/128")
        self.right.address("lo", f"{TELLS6}/128")
        for family in (4, 6):
            for kind, where in (("prohibit", PROHIBITED), ("unreachable", UNREACHABLE), ("blackhole", BLACKHOLE)):
                self.right.ip(f"{flag(family)}route add {kind} {where[family]}")
            self.right.ip(f"{flag(family)}route add {NARROW[family]} dev lan0 mtu {NARROW_MTU}")
        self.gateways = []
        for ends, namespace in (((0, 1), self.left), ((1, 0), self.right)):
            gateway = Gateway(uxfrm, namespace, mtu=1446)
            self.callback(gateway.close)
            lines = [with_words(line, words) for line in site_lines(*ends)]
            gateway.start(lines, guard=guard if namespace is self.right else "off")
            self.gateways.append(gateway)
        self.between.seen()

    def dropped(self):
        """Errors that the right gateway has dropped for what they quote."""
        said = self.right.run(str(self._uxfrm), "stat", "--reasons")
        return next((int(line.split()[1]) for line in said.splitlines() if line.split()[:1] == [REASON]), 0)

    def is_dropped(self, provoke):
        """Provokes until an error was dropped; none was seen on the wire, and something in ESP was."""
        before = self.dropped()

        def has_counted():
            provoke()
            return self.dropped() > before

        patience.wait_for(has_counted, "no error about it was dropped")
        frames = [frame for _, frame in self.between.seen()]
        assert "esp" in map(wire.protocol, frames), "nothing came by the tunnel"
        assert not (quoted := [frame for frame in frames if MARK in frame]), quoted[0].hex()

    def is_seen(self, provoke):
        """Provokes until an error that quotes was seen on the wire."""

        def has_come():
            provoke()
            return [frame for _, frame in self.between.seen() if MARK in frame and is_icmp(frame)]

        patience.wait_for(has_come, "no error about it was seen")


MARK = echo.MARKER[:8]


def with_words(line, words):
    """A policy for less."""
    return re.sub(r"( dir (?:in|out|fwd) )", rf" {words}\1", line) if words and "xfrm policy" in line else line


def is_icmp(frame):
    return wire.protocol(frame) in ("ipv4 protocol 1", "ipv6 protocol 58")


def ping(namespace, source, destination, *more):
    words = ["ping", "-n", "-c", "1", "-W", "1", "-p", MARK.hex(), "-I", source, *more, destination]
    return namespace.run(*words, check=False)


def datagram(namespace, source, destination, hops=64, size=64, port=CLOSED_PORT):
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    level, option = (socket.IPPROTO_IPV6, 16) if family == socket.AF_INET6 else (socket.IPPROTO_IP, 2)
    with namespace.entered():
        sender = socket.socket(family, socket.SOCK_DGRAM)
    with sender:
        sender.bind((source, 0))
        sender.setsockopt(level, option, hops)
        sender.sendto((MARK * size)[:size], (destination, port))


def provocations(network, family):
    """What the right gateway has to tell the host behind the left one of, by name."""
    host, source, there = network.left_host, HOSTS[family][0], HOSTS[family][1]
    return {
        "hop limit": lambda: ping(host, source, there, "-t", "2"),
        "hop limit of udp": lambda: datagram(host, source, there, hops=2),
        "prohibited": lambda: ping(host, source, PROHIBITED[family]),
        "unreachable": lambda: ping(host, source, UNREACHABLE[family]),
        "no neighbour": lambda: ping(host, source, NOBODY[family]),
        "too big": lambda: ping(host, source, NARROW[family], "-M", "do", "-s", "1350"),
    }


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Quoting(uxfrm) as made:
        yield made


@pytest.mark.parametrize("family", [4, 6])
def test_errors_about_what_came_in_esp_do_not_leave_plain(network, family):
    for name, provoke in provocations(network, family).items():
        try:
            network.is_dropped(provoke)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    # Nothing is told of a black hole, and a closed port by an address that the policies name.
    before = network.dropped()
    ping(network.left_host, HOSTS[family][0], BLACKHOLE[family])
    datagram(network.left_host, HOSTS[family][0], OWN[family])
    ping(network.left_host, *HOSTS[family])
    assert network.dropped() == before
    quoted = [frame for _, frame in network.between.seen() if MARK in frame]
    assert not quoted, quoted[0].hex()
    said = network.right.run(str(network._uxfrm), "drops", check=False)
    assert REASON in said and "no policy covers the answer" in said, said


@pytest.mark.parametrize("family", [4, 6])
def test_errors_leave_plain_where_nobody_guards(uxfrm, family):
    """The counter-test: each of them is told of, plain, with a quote."""
    prerequisite.packet_filter()
    with Quoting(uxfrm, "off") as network:
        for provoke in provocations(network, family).values():
            network.is_seen(provoke)


@pytest.mark.parametrize("family", [4, 6])
def test_closed_port_under_policies_for_one_protocol(uxfrm, family):
    """Policies for UDP leave out what tells of it, though its source is theirs."""
    prerequisite.packet_filter()
    with Quoting(uxfrm, "require", ONLY_UDP) as network:
        network.is_dropped(lambda: datagram(network.left_host, HOSTS[family][0], OWN[family]))
        network.is_dropped(lambda: datagram(network.left_host, HOSTS[family][0], HOSTS[family][1], hops=2))
        # ICMP between the same hosts goes plain, and so does what tells of it.
        network.is_seen(lambda: ping(network.left_host, HOSTS[family][0], PROHIBITED[family]))
        assert matching("prohibited|filtered", ping(network.left_host, HOSTS[family][0], PROHIBITED[family]))


@pytest.mark.parametrize("family", [4, 6])
def test_policy_from_the_gateways_address_takes_errors_into_the_tunnel(uxfrm, family):
    """As the drop's next step says."""
    prerequisite.packet_filter()
    nets = {4: "10.1.0.0/24", 6: "fd01::/64"}
    with Quoting(uxfrm) as network:
        template = "tmpl src {} dst {} proto esp reqid 1 mode tunnel"
        outer = ("10.9.0.1", "10.9.0.2")
        lines = []
        for here, there in ((0, 1), (1, 0)):
            lines.append(site_lines(here, there))
        own = {4: outer[1], 6: TELLS6}[family]
        lines[1].append(f"xfrm policy add src {own} dst {nets[family]} dir out {template.format(*outer[::-1])}")
        for way in ("in", "fwd"):
            lines[0].append(f"xfrm policy add src {own} dst {nets[family]} dir {way} {template.format(*outer[::-1])}")
        for gateway, own_lines in zip(network.gateways, lines):
            gateway.stop()
            gateway.start(own_lines, guard="require")

        def is_told():
            return "exceeded" in ping(network.left_host, *HOSTS[family], "-t", "2")

        network.between.seen()
        patience.wait_for(is_told, "the sender does not hear of it")
        quoted = [frame for _, frame in network.between.seen() if MARK in frame]
        assert not quoted, quoted[0].hex()
        assert network.dropped() == 0


@pytest.mark.parametrize("family", [4, 6])
def test_errors_about_plain_packets_are_told(network, family):
    """Between addresses that no policy names, and to hosts on the gateway's own side about what they
    send into the tunnel."""
    told = {
        "exceeded": (HOSTS[family][1], "-t", "1"),
        "prohibited|filtered": (PROHIBITED[family],),
        "nreachable": (UNREACHABLE[family],),
        "too (big|large|long)|needed|mtu": (NARROW[family], "-M", "do", "-s", "1350"),
    }
    for words, more in told.items():
        said = patience.wait_for(lambda more=more: matching(words, ping(network.left, PLAIN[family], *more)), words)
        assert said
    # The hosts behind the right gateway.
    here, there = HOSTS[family][::-1]
    for words, more in {"exceeded": ("-t", "1"), "needed|mtu|too big": ("-M", "do", "-s", "1440")}.items():
        patience.wait_for(lambda more=more: matching(words, ping(network.right_host, here, there, *more)), words)
    assert network.dropped() == 0


def matching(words, said):
    return re.search(words, said, re.IGNORECASE)


@pytest.mark.parametrize("family", [4, 6])
def test_redirects_about_plain_packets_leave(network, family):
    """A host behind the gateway has another router in its own net."""
    net, router = {4: ("10.7.0.0/24", "10.2.0.3"), 6: ("fd07::/64", "fe80::3")}[family]
    network.right.run("sysctl", "-qw", "net.ipv4.conf.all.send_redirects=1", "net.ipv4.conf.lan0.send_redirects=1")
    network.right.neighbour("lan0", "02:00:00:00:00:03", router)
    network.right.ip(f"{flag(family)}route add {net} via {router} dev lan0")
    lan = network.wire(network.right, "lan0")
    far = {4: "10.7.0.9", 6: "fd07::9"}[family]

    def is_redirected():
        ping(network.right_host, HOSTS[family][1], far)
        return [frame for outgoing, frame in lan.seen() if outgoing and kind_of(frame) in (REDIRECT, REDIRECT_V6)]

    patience.wait_for(is_redirected, "no redirect")
    assert network.dropped() == 0


def kind_of(frame):
    """ICMP's type, or None."""
    of_v4 = struct.unpack_from("!H", frame, 12)[0] == 0x0800 and frame[23] == 1
    of_v6 = struct.unpack_from("!H", frame, 12)[0] == 0x86DD and frame[20] == 58
    return frame[34] if of_v4 else frame[54] if of_v6 else None


@pytest.mark.parametrize("family", [4, 6])
def test_routers_behind_the_gateway_tell_nobody_in_plain(network, family):
    """What it forwards plain is judged as well: an error from an address that no policy names."""
    inner = network.namespace("quotes-inner")
    veth(network.right_host, "eth1", inner, "eth0")
    addresses = {4: ("10.5.0.1", "10.5.0.2", "24"), 6: ("fd05::1", "fd05::2", "64")}[family]
    network.right_host.address("eth1", f"{addresses[0]}/{addresses[2]}")
    inner.address("eth0", f"{addresses[1]}/{addresses[2]}")
    network.right_host.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    # It tells from its address towards the inner net.
    network.right_host.ip(f"{flag(family)}route replace default via {OWN[family]} src {addresses[0]}")
    deep = {4: "10.2.0.200", 6: "fd02::200"}[family]
    network.right_host.ip(f"{flag(family)}route add {deep} via {addresses[1]}")
    network.right.ip(f"{flag(family)}route add {deep} via {HOSTS[family][1]}")
    network.is_dropped(lambda: ping(network.left_host, HOSTS[family][0], deep, "-t", "3"))



def test_policies_that_come_and_go_are_followed(uxfrm):
    """Errors pass once nothing protects what they quote, and are dropped again with the policy."""
    prerequisite.packet_filter()
    with Quoting(uxfrm) as network:
        right = network.gateways[1]
        right.stop()
        right.start([line for line in site_lines(1, 0) if "xfrm state" in line], guard="require", more="\n[control]\nenabled = true\n")
        plain = [line for line in site_lines(0, 1) if "xfrm state" in line]
        network.gateways[0].stop()
        network.gateways[0].start(plain, guard="off")
        host, ends = network.left_host, HOSTS[4]
        network.is_seen(lambda: ping(host, ends[0], PROHIBITED[4]))
        assert network.dropped() == 0
        policies = [line for line in site_lines(1, 0) if "xfrm policy" in line and "10.1." in line]
        for line in policies:
            right.ip(line)
        # What comes plain now is stopped by its route, before the guard is asked for `fwd`.
        before = network.dropped()

        def is_counted():
            ping(host, ends[0], PROHIBITED[4])
            return network.dropped() > before

        patience.wait_for(is_counted, "the policy is not followed")
        for line in policies:
            right.ip(re.sub(r" tmpl .*", "", line.replace("policy add", "policy delete")))
        network.between.seen()
        network.is_seen(lambda: ping(host, ends[0], PROHIBITED[4]))


def of_ipv6(lines):
    """The hub's tunnels for nets of IPv6."""
    for line in lines:
        line = line.replace(HUB_NETS[0], "fd01::/64").replace(HUB_NETS[1], "fd03::/64")
        yield f"{line} flag af-unspec" if "xfrm state" in line else line


def test_hub_redirects_nobody_by_ipv6(uxfrm):
    """What comes out of one tunnel and goes into another, to a sender that the hub takes for a
    neighbour."""
    prerequisite.packet_filter()
    with topology.PlacedGateways() as network:
        network.left.ip("-6 route add fd03::/64 via fd09::2 src fd01::1")
        network.right.ip("-6 route replace fd01::1 dev wire0")
        network.right.neighbour("wire0", network.left.mac("wire0"), "10.9.0.3", "fd01::1")
        network.right.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv6.icmp.ratelimit=0")
        for namespace, lines in ((network.left, hub_site_lines()), (network.right, hub_lines())):
            gateway = network.gateway(uxfrm, namespace)
            gateway.start(list(of_ipv6(lines)))
        network.between.seen()
        for _ in range(3):
            ping(network.left, "fd01::1", "fd03::7")
        frames = [frame for _, frame in network.between.seen()]
        assert "esp" in map(wire.protocol, frames), "nothing came to the hub"
        assert not (quoted := [frame for frame in frames if MARK in frame]), quoted[0].hex()
