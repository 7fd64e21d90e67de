"""Only what a policy protects is touched: routes and source addresses are as if uxfrm were not there, and only then policies are asked, as in Linux.

    10.1.0.1 on lo                                      10.2.0.1 on lo, 10.66.0.1 as well
    ┌─ namespace left ─┐             wire                ┌─ namespace right ─┐
    │  uxfrm   wire0 ──┼─────────────────────────────────┼── wire0    uxfrm  │
    └──────────────────┘  10.9.0.1   │   10.9.0.2, .7    └───────────────────┘

Left sends what no route of its own leads elsewhere to right, which has addresses enough for a neighbour, a protected net and others.
"""

import contextlib
import socket
import struct
import time

import pytest

import charon
import echo
import ike
import prerequisite
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED
from ike import End
from refusing import Refusing
from topology import HERE, THERE

SECONDS = 5
NEIGHBOUR = {4: "10.9.0.7", 6: "fd09::7"}
OTHER = {4: "10.66.0.1", 6: "fd66::1"}
NET = {4: "10.2.0.0/16", 6: "fd02::/16"}
LAN = {4: "10.9.0.0/24", 6: "fd09::/64"}
ALL = {4: "0.0.0.0/0", 6: "::/0"}


class Pair(topology.PlacedGateways):
    """Right takes everything and answers; left leads everything to it."""

    def _build(self, uxfrm):
        super()._build()
        self.uxfrm = str(uxfrm)
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)
        for family in (4, 6):
            self.right.address("wire0", NEIGHBOUR[family] + ("/24" if family == 4 else "/64"))
            self.right.address("lo", OTHER[family] + ("/32" if family == 4 else "/128"))
            self.left.neighbour("wire0", self.right.mac("wire0"), NEIGHBOUR[family])
            version = "" if family == 4 else "-6 "
            self.left.ip(f"{version}route del {THERE.inner[family]}")
            self.left.ip(f"{version}route add default via {THERE.outer[family]}")
            self.right.ip(f"{version}route add default via {HERE.outer[family]}")

    def start(self, family, policies, more=(), there=None, **options):
        """Left with these policies `out`: (source, destination, further words, whether it protects)."""
        association = Association(GCM_128, "tunnel", family, family)
        ends = f"src {HERE.outer[family]} dst {THERE.outer[family]}"
        template = f"tmpl {ends} proto esp reqid 1 mode tunnel"
        self.lines = [
            f"xfrm policy add src {source} dst {destination} {words} dir out priority {number} {template if protects else ''}"
            for number, (source, destination, words, protects) in enumerate(policies, 1)
        ]
        self.here.start(
            [*association.states(HERE, THERE), *self.lines, *more], more=CONTROLLED + options.pop("more", ""), **options
        )
        self.there.start([*association.states(THERE, HERE), *(there or [])])
        self.between.seen()

    def sent(self, expected):
        """What left sent: kinds of frames, once as many have been seen."""
        frames, deadline = [], time.monotonic() + SECONDS
        while len(frames) < expected and time.monotonic() < deadline:
            seen = [frame for outgoing, frame in self.between.seen() if outgoing]
            frames += [frame for frame in seen if wire.protocol(frame) != "housekeeping"]
            time.sleep(0.01)
        return frames

    def kinds(self, expected=1):
        return ["esp" if wire.protocol(frame) == "esp" else "plain" for frame in self.sent(expected)]

    def route(self, destination):
        """The device and the source address of an unbound socket."""
        words = self.left.ip(f"route get {destination}").split()
        return words[words.index("dev") + 1], words[words.index("src") + 1]


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Pair(uxfrm) as made:
        yield made


def datagrams(family):
    return socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)


def unbound(family, destination, _):
    with datagrams(family) as made:
        made.sendto(echo.MARKER, (destination, 9))


def bound(family, destination, source):
    with datagrams(family) as made:
        made.bind((source, 0))
        made.sendto(echo.MARKER, (destination, 9))


def connected(family, destination, _):
    with datagrams(family) as made:
        made.connect((destination, 9))
        made.send(echo.MARKER)


def raw(family, destination, _):
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with socket.socket(kind, socket.SOCK_RAW, 253) as made:
        made.sendto(echo.MARKER, (destination, 0))


def ping(family, destination, _):
    kind, number, request = (socket.AF_INET, 1, 8) if family == 4 else (socket.AF_INET6, 58, 128)
    with socket.socket(kind, socket.SOCK_RAW, number) as made:
        header = struct.pack("!BBHHH", request, 0, 0, 7, 1)
        total = sum(struct.unpack("!8H", header + echo.MARKER[:8]))
        header = struct.pack("!BBHHH", request, 0, ~(total % 0xFFFF) & 0xFFFF, 7, 1)
        made.sendto(header + echo.MARKER[:8], (destination, 0))


def tcp(family, destination, _):
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with socket.socket(kind, socket.SOCK_STREAM) as made:
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.connect((destination, 9))
        time.sleep(0.05)


SOCKETS = [unbound, bound, connected, raw, ping, tcp]


@pytest.mark.parametrize("family", (4, 6))
def test_every_kind_of_socket_goes_where_its_policy_says(network, family):
    """Protected whatever its source address was found by; all else by its own way."""
    network.start(family, [(ALL[family], NET[family], "", True)])
    for kind in SOCKETS:
        with network.left.entered():
            kind(family, THERE.inner[family], HERE.outer[family])
            assert network.kinds() == ["esp"], kind
            kind(family, NEIGHBOUR[family], HERE.outer[family])
            assert network.kinds() == ["plain"], kind
            kind(family, OTHER[family], HERE.outer[family])
            assert network.kinds() == ["plain"], kind
    assert network.here.statistics() == {}


@pytest.mark.parametrize("family", (4, 6))
def test_what_comes_from_elsewhere_has_its_own_way(network, family):
    """A gateway's policy for a net behind it, and its own neighbour within the other net (seen: it lost its neighbour)."""
    behind, neighbours = {4: ("10.1.0.0/24", "10.9.0.0/16"), 6: ("fd01::/64", "fd09::/48")}[family]
    before = network.route(NEIGHBOUR[family])
    network.start(family, [(behind, neighbours, "", True)])
    assert network.route(NEIGHBOUR[family]) == before == ("wire0", HERE.outer[family])
    with network.left.entered():
        for kind in SOCKETS:
            kind(family, NEIGHBOUR[family], HERE.outer[family])
            assert network.kinds() == ["plain"], kind
        bound(family, NEIGHBOUR[family], HERE.inner[family])
        assert network.kinds() == ["esp"]
    assert network.left.run("ping", "-q", "-c1", "-W2", NEIGHBOUR[family])


@pytest.mark.parametrize("family", (4, 6))
@pytest.mark.parametrize("table", [False, True], ids=["main", "table 220"])
def test_a_full_tunnel_leaves_the_lan_alone(network, family, table):
    """Of a road warrior with a virtual address, whose routes are strongSwan's own or none."""
    virtual = f"{HERE.inner[family]}/{32 if family == 4 else 128}"
    version = "" if family == 4 else "-6 "
    if table:
        network.left.ip(f"{version}rule add pref 220 lookup 220")
        network.left.ip(f"{version}route add default via {THERE.outer[family]} src {HERE.inner[family]} table 220")
        network.left.ip(f"{version}route add throw {LAN[family]} table 220")
    before = [network.route(destination) for destination in (NEIGHBOUR[family], THERE.inner[family])]
    network.start(family, [(ALL[family], LAN[family], "", False), (virtual, ALL[family], "", True)])
    assert [network.route(destination) for destination in (NEIGHBOUR[family], THERE.inner[family])] == before
    with network.left.entered():
        unbound(family, NEIGHBOUR[family], None)
        [frame] = network.sent(1)
        assert echo.MARKER in frame and socket.inet_pton(socket.AF_INET if family == 4 else socket.AF_INET6, HERE.outer[family]) in frame
        for kind in SOCKETS if table else [bound]:
            kind(family, THERE.inner[family], HERE.inner[family])
            assert network.kinds() == ["esp"], kind


def test_a_port_is_protected_and_the_rest_is_not(network):
    network.start(4, [(ALL[4], NET[4], "proto udp dport 9", True)])
    with network.left.entered(), datagrams(4) as sender:
        for port, kind in ((9, "esp"), (10, "plain")):
            sender.sendto(echo.MARKER, (THERE.inner[4], port))
            assert network.kinds() == [kind]
            sender.sendto(echo.MARKER + bytes(4000), (THERE.inner[4], port))
            assert set(network.kinds(3)) == {kind}


def test_a_policy_s_order_counts_and_not_the_length_of_its_prefix(network):
    network.start(4, [(ALL[4], "10.0.0.0/8", "", True), (ALL[4], NET[4], "", False)])
    with network.left.entered():
        unbound(4, THERE.inner[4], None)
        assert network.kinds() == ["esp"]


def rules(network):
    return network.left.ip("rule")


def wait_for(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"after {SECONDS} s not yet: {what}"
        time.sleep(0.02)


def test_the_common_case_is_led_by_routes(network):
    """So a connected socket has its way into the TUN from the start; at most 32 rules, all before strongSwan's."""
    network.start(4, [(f"{HERE.inner[4]}/32", NET[4], "", True), (f"{HERE.inner[4]}/32", "10.2.7.0/24", "", True)])
    assert "dev uxfrm0" in network.left.ip(f"route get {THERE.inner[4]} from {HERE.inner[4]}")
    assert "dev wire0" in network.left.ip(f"route get {THERE.inner[4]} from {HERE.outer[4]}")
    for number in range(40):
        network.here.ip(f"xfrm policy add src 10.{100 + number}.0.0/16 dst 10.77.0.0/16 dir out action block")
    def early():
        numbers = [int(line.split(":")[0]) for line in rules(network).splitlines()]
        return [number for number in numbers if 0 < number < 220]

    wait_for(lambda: len(early()) == 32, "as many rules as there may be")
    network.here.ip("xfrm policy flush")
    wait_for(lambda: len(early()) == 2, "the rules of what is gone are gone")
    network.here.stop()
    assert early() == []


def test_strict_checks_of_ways_back_let_in_what_was_decrypted(network):
    """`rp_filter` 1 with `src_valid_mark` 1, and firewalld's rule for IPv6."""
    network.left.run("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.all.src_valid_mark=1")
    network.left.run("nft", RPFILTER)
    for family in (4, 6):
        association = Association(GCM_128, "tunnel", family, family)
        width = 32 if family == 4 else 128
        out = f"src {HERE.inner[family]}/{width} dst {ALL[family]}"
        ends = f"src {HERE.outer[family]} dst {THERE.outer[family]}"
        _, inward = association.policies(HERE, THERE)
        outward = f"xfrm policy add {out} dir out tmpl {ends} proto esp reqid 1 mode tunnel"
        lines = [*association.states(HERE, THERE), outward, inward]
        network.here.start(lines, more=CONTROLLED)
        network.there.start(association.lines(THERE, HERE))
        network.left.ping(HERE.inner[family], THERE.inner[family])
        network.here.stop()
        network.there.stop()


RPFILTER = """table inet firewalld {
    chain filter_PREROUTING {
        type filter hook prerouting priority -290
        meta nfproto ipv6 fib saddr . mark . iif oif missing drop
    }
}"""


@pytest.mark.parametrize("family", (4, 6))
def test_a_narrow_path_is_heard_of_after_a_packet_was_rerouted(network, family):
    """The TUN takes less than the wire: an unbound socket's large datagrams come as fragments, or are refused, and none is lost in silence."""
    network.start(family, [(ALL[family], NET[family], "", True)])
    level, option, want = (socket.IPPROTO_IP, 10, 2) if family == 4 else (socket.IPPROTO_IPV6, 23, 2)
    with network.left.entered(), datagrams(family) as sender:
        sender.setsockopt(level, option, want)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        refused = 0
        for _ in range(50):
            try:
                sender.sendto(echo.MARKER + bytes(1430), (THERE.inner[family], 9))
            except OSError as error:
                assert error.errno == 90, error  # EMSGSIZE
                refused += 1
                break
            time.sleep(0.02)
        assert refused, "the socket has heard of it"
        network.between.seen()
        sender.sendto(echo.MARKER + bytes(1000), (THERE.inner[family], 9))
        assert network.kinds() == ["esp"]


def test_a_device_that_forwards_has_the_tun_forward_too(network):
    """Set for one device alone, it is 0 for those that come later: what was decrypted for others was lost in silence."""
    def forwards():
        return network.left.run("cat", "/proc/sys/net/ipv4/conf/uxfrm0/forwarding").strip()

    network.left.run("sysctl", "-qw", "net.ipv4.conf.all.forwarding=0")
    network.here.start([])
    assert forwards() == "0"
    network.left.run("sysctl", "-qw", "net.ipv4.conf.wire0.forwarding=1")
    wait_for(lambda: forwards() == "1", "the TUN forwards")
    assert "net.ipv4.conf.uxfrm0.forwarding is 1 now" in network.here.log()
    network.here.stop()
    network.here.start([])
    assert forwards() == "1"


def test_after_a_crash_what_is_protected_stays_in(network):
    network.start(4, [(ALL[4], NET[4], "", True), (f"{HERE.inner[4]}/32", "10.66.0.0/16", "", True)])
    network.here.kill()
    with network.left.entered():
        for destination, source in ((THERE.inner[4], HERE.outer[4]), (OTHER[4], HERE.inner[4])):
            for kind in SOCKETS:
                if destination == OTHER[4] and kind is not bound:
                    continue
                with contextlib.suppress(OSError):
                    kind(4, destination, source)
    unbound_to_neighbour = network.left.run("ping", "-q", "-c1", "-W2", NEIGHBOUR[4])
    assert "1 received" in unbound_to_neighbour
    assert not any(echo.MARKER[:8] in frame for frame in network.sent(0) + network.sent(1)), "in the clear"
    network.here.start([*Association(GCM_128, "tunnel", 4, 4).states(HERE, THERE), *network.lines], more=CONTROLLED)
    with network.left.entered():
        unbound(4, THERE.inner[4], None)
        assert "esp" in network.kinds()
    network.here.stop()
    assert "lookup 3000" not in rules(network) and "uxfrm" not in network.left.run("nft", "list", "tables")


def test_without_a_packet_filter_destinations_lead_and_the_log_says_what_differs(network, uxfrm, tmp_path):
    kernel = Refusing(tmp_path, uxfrm, why="EOPNOTSUPP")
    kernel.refuse()
    network.here = network.gateway(kernel.binary, network.left)
    network.start(4, [(ALL[4], NET[4], "", True)])
    for told in ("no guard", "led into uxfrm0 by their destinations alone"):
        assert told in network.here.log()
    with network.left.entered():
        for kind in SOCKETS:
            kind(4, THERE.inner[4], HERE.outer[4])
            assert network.kinds() == ["esp"], kind
            kind(4, NEIGHBOUR[4], HERE.outer[4])
            assert network.kinds() == ["plain"], kind
    network.here.stop()
    assert "lookup 30000" not in rules(network)


def test_packets_are_marked_also_where_somebody_else_guards(network):
    network.start(4, [(ALL[4], NET[4], "", True)], guard="off")
    with network.left.entered():
        for kind in SOCKETS:
            kind(4, THERE.inner[4], HERE.outer[4])
            assert network.kinds() == ["esp"], kind
            kind(4, NEIGHBOUR[4], HERE.outer[4])
            assert network.kinds() == ["plain"], kind
    network.here.stop()
    assert "uxfrm" not in network.left.run("nft", "list", "tables")


@pytest.fixture(scope="module")
def sites():
    prerequisite.strongswan()
    with topology.Sites() as made:
        yield made


def test_forwarded_fragments_meet_a_policy_that_asks_for_ports(uxfrm):
    """Later ones have none (seen: all of them passed it). uxfrm judges the datagram: another port's leaves plain and whole."""
    association = Association(GCM_128, "tunnel", 4, 4)
    with topology.Sites() as sites, topology.Hosts() as running:
        here, there = running.gateway(uxfrm, sites.left), running.gateway(uxfrm, sites.right)
        template = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 1 mode tunnel"
        net = "src 10.1.0.0/24 dst 10.2.0.0/24 proto udp dport 9"
        here.start([*association.states(HERE, THERE), f"xfrm policy add {net} dir out {template}"], more=CONTROLLED)
        there.start([*association.states(THERE, HERE), f"xfrm policy add {net} dir fwd {template}"])
        with sites.right_host.entered():
            receivers = {port: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for port in (9, 10)}
        with sites.left_host.entered(), datagrams(4) as sender:
            for port, kind in ((9, "esp"), (10, "plain")):
                sites.between.seen()
                with receivers[port] as receiver:
                    receiver.bind(("10.2.0.2", port))
                    receiver.settimeout(SECONDS)
                    sent = echo.MARKER * 250
                    sender.sendto(sent, ("10.2.0.2", port))
                    assert receiver.recv(65536) == sent
                out = [frame for outgoing, frame in sites.between.seen() if outgoing]
                assert any(echo.MARKER in frame for frame in out) is (kind == "plain")
        assert here.statistics() == {}


def test_a_strongswan_road_warrior_with_bypass_lan_and_a_shunt(uxfrm, sites):
    """charon's own routes stay on. LAN by its own address and plain, what the shunt passes plain, all else in the tunnel."""
    with topology.Hosts() as running:
        left, right = End(sites.left, "10.9.0.1", "dynamic"), End(sites.right, "10.9.0.2", "0.0.0.0/0")
        sites.right.address("lo", "10.66.0.1/32", "10.67.0.1/32")
        left.gateway = running.gateway(uxfrm, left.namespace)
        left.gateway.start([], more=CONTROLLED)
        plugins = f"{charon.PLUGINS} bypass-lan"
        left._start_charon(
            running, charon.Charon(left.namespace, [str(uxfrm), "exec", "--"], plugins=plugins)
        )
        right.start(running, uxfrm)
        shunt = {"mode": "pass", "local_ts": "0.0.0.0/0", "remote_ts": "10.66.0.0/16", "start_action": "trap"}
        mine = ike.connection(left, right, vips="0.0.0.0")
        mine["connections"]["shunt"] = {"remote_addrs": "127.0.0.1", "children": {"shunt": shunt}}
        left.charon.load(mine)
        theirs = ike.connection(right, left, {"remote_ts": "dynamic"}, pools="guests")
        right.charon.load(theirs | {"pools": {"guests": {"addrs": "10.3.0.0/28"}}})
        left.charon.initiate()
        wait_for(lambda: "10.1.0.0/24" in left.policies(), "bypass-lan's policies")
        lan = running.wire(sites.left, "lan0")
        sites.between.seen()

        assert "src 10.1.0.1" in sites.left.ip("route get 10.1.0.2") and "dev lan0" in sites.left.ip("route get 10.1.0.2")
        sites.left.run("ping", "-q", "-c", "3", "-i", "0.02", "-W", "1", "-p", echo.MARKER.hex(), "10.1.0.2")
        assert sum(echo.MARKER in frame for _, frame in lan.seen()) == 6
        assert not any(wire.protocol(frame) == "esp" for _, frame in sites.between.seen())

        for elsewhere in ("10.2.0.2", "10.67.0.1"):
            sites.left.run("ping", "-q", "-c", "3", "-i", "0.02", "-W", "1", "-p", echo.MARKER.hex(), elsewhere)
        with sites.left.entered():
            echo.transfer("10.3.0.1", "10.2.0.2", 100_000)
        wire.assert_only("esp", sites.between.seen())

        sites.left.run("ping", "-q", "-c", "3", "-i", "0.02", "-W", "0.2", "-p", echo.MARKER.hex(), "10.66.0.1", check=False)
        out = [frame for outgoing, frame in sites.between.seen() if outgoing]
        assert sum(echo.MARKER in frame for frame in out) == 3, "the shunt passes plain"
        assert left.gateway.statistics().get("XfrmOutError", 0) == 0
