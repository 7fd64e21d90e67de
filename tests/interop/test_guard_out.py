"""The guard on the way out: what the policies want protected leaves by no other way than uxfrm.

Routes bring traffic to uxfrm, but sockets that are bound to a device, or name one with a packet,
go by the device whatever the routes say, and broadcasts and IPv6 multicast by routes that stand
before uxfrm's. In Linux XFRM is asked about these too. The network is test_guard's; a wire
between the gateways sees what leaves.
"""

import errno
import socket
import struct
import time

import pytest

import echo
import patience
import prerequisite
import topology
from association import GCM_128, Association
from topology import HERE, THERE
from wire import assert_no_plaintext

DEVICE = "wire0"
SETTLE_SECONDS = 0.2
IP_PKTINFO, IP_UNICAST_IF, IPV6_PKTINFO, IPV6_RTHDR, SO_BINDTODEVICE = 8, 50, 50, 57, 25
NET = {4: "10.2.0.0/16", 6: "fd02::/16"}
ALL = {4: "0.0.0.0/0", 6: "::/0"}


class Guarded(topology.PlacedGateways):
    """Left and right, of which the left one guards."""

    def _build(self, uxfrm):
        super()._build()
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)

    def protect(self, destinations):
        ends = f"src {HERE.outer[4]} dst {THERE.outer[4]}"
        out = [
            f"xfrm policy add src {ALL[family]} dst {destinations[family]} dir out tmpl {ends} proto esp mode tunnel"
            for family in (4, 6)
        ]
        self.here.start(out, guard="require")

    def refused(self):
        return self.here.statistics().get("XfrmOutError", 0)


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Guarded(uxfrm) as made:
        yield made


def index():
    return socket.if_nametoindex(DEVICE)


def datagram_socket(family):
    return socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)


def bound(family, destination):
    with datagram_socket(family) as made:
        made.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, DEVICE.encode())
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.sendto(echo.MARKER, (destination, 9))


def with_packet_info(family, destination):
    info = (
        (socket.IPPROTO_IP, IP_PKTINFO, struct.pack("I8x", index()))
        if family == 4
        else (socket.IPPROTO_IPV6, IPV6_PKTINFO, struct.pack("16xI", index()))
    )
    with datagram_socket(family) as made:
        made.sendmsg([echo.MARKER], [info], 0, (destination, 9))


def by_unicast_device(_, destination):
    with datagram_socket(4) as made:
        made.setsockopt(socket.IPPROTO_IP, IP_UNICAST_IF, struct.pack("!I", index()))
        made.sendto(echo.MARKER, (destination, 9))


def by_multicast_device(family, destination):
    with datagram_socket(family) as made:
        if family == 4:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("8xI", index()))
        else:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index())
        made.sendto(echo.MARKER, (destination, 9))


def by_segments(_, destination):
    """First to the neighbour, by the routes to it, and from there to the destination (RFC 8754)."""
    segments = [socket.inet_pton(socket.AF_INET6, address) for address in (destination, THERE.outer[6])]
    header = struct.pack("!8B", 0, 4, 4, 1, 1, 0, 0, 0) + b"".join(segments)
    with datagram_socket(6) as made:
        made.setsockopt(socket.IPPROTO_IPV6, IPV6_RTHDR, header)
        made.sendto(echo.MARKER, (destination, 9))


def with_routing_header(_, destination):
    """All of its own making: it has come to its last segment, which is another's."""
    udp = struct.pack("!4H", 9, 9, 8 + len(echo.MARKER), 0) + echo.MARKER
    routing = struct.pack("!8B", socket.IPPROTO_UDP, 2, 4, 0, 0, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, "fd99::1")
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, address) for address in (HERE.outer[6], destination))
    header = struct.pack("!IHBB", 6 << 28, len(routing + udp), socket.IPPROTO_ROUTING, 64) + addresses
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW) as made:
        made.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, DEVICE.encode())
        made.sendto(header + routing + udp, (destination, 0))


def broadcast(_, destination):
    with datagram_socket(4) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.bind((HERE.outer[4], 0))
        made.sendto(echo.MARKER, (destination, 9))


# A socket that names a device and is not bound to it is led to uxfrm all the same, as in Linux.
LED_TO_UXFRM = [
    (with_packet_info, 4, THERE.inner[4]),
    (with_packet_info, 6, THERE.inner[6]),
    (by_unicast_device, 4, THERE.inner[4]),
]
TO_THE_OTHER_SIDE = [(bound, 4, THERE.inner[4]), (bound, 6, THERE.inner[6]), (with_routing_header, 6, THERE.inner[6])]
# Where all is to be protected routes lead it to uxfrm, whoever comes first.
BY_OTHERS = [(by_segments, 6, THERE.inner[6])]
TO_MANY = [
    (broadcast, 4, "10.9.0.255"),
    (broadcast, 4, "255.255.255.255"),
    (bound, 4, "255.255.255.255"),
    (by_multicast_device, 4, "239.1.1.1"),
    (by_multicast_device, 4, "224.0.0.251"),
    (by_multicast_device, 6, "ff02::fb"),
    (by_multicast_device, 6, "ff0e::1"),
]


def send(network, case):
    """Whether the host let it go."""
    way, family, destination = case
    with network.left.entered():
        try:
            way(family, destination)
        except OSError as error:
            assert error.errno in (errno.EPERM, errno.EHOSTUNREACH), error
            return False
    return True


def plain(network, expected=0):
    """How many left plain, once as many as expected have, and no other a moment later."""
    count = 0

    def has_left():
        nonlocal count
        count += sum(outgoing and echo.MARKER in frame for outgoing, frame in network.between.seen())
        return count >= expected

    patience.wait_for(has_left, lambda: f"{count} of {expected} left")
    time.sleep(SETTLE_SECONDS)
    has_left()
    return count


def test_all_of_them_leave_plain_without_policies(network):
    """The counter-test: so they go if nobody guards."""
    cases = TO_THE_OTHER_SIDE + LED_TO_UXFRM + BY_OTHERS + TO_MANY
    assert all(send(network, case) for case in cases)
    assert plain(network, len(cases)) == len(cases)


@pytest.mark.parametrize("destinations", [NET, ALL], ids=["net", "all"])
def test_what_is_to_be_protected_does_not_leave_past_uxfrm(destinations, network):
    network.protect(destinations)
    cases = TO_THE_OTHER_SIDE + (TO_MANY if destinations is ALL else BY_OTHERS)
    for case in cases:
        assert not send(network, case), case
    for case in LED_TO_UXFRM:
        assert send(network, case), case
    assert plain(network) == 0
    assert network.here.statistics()["XfrmOutNoStates"] >= len(LED_TO_UXFRM)
    # Linux itself may have sent to multicast groups meanwhile.
    assert network.refused() >= len(cases)
    network.here.kill()
    for case in cases + LED_TO_UXFRM:
        assert not send(network, case), f"after a crash: {case}"
    assert plain(network) == 0


def test_what_no_policy_is_for_leaves_as_ever(network):
    network.protect(NET)
    assert all(send(network, case) for case in TO_MANY)
    for family in (4, 6):
        network.left.ping(HERE.outer[family], THERE.outer[family])
    assert plain(network) >= len(TO_MANY)
    assert network.refused() == 0
    network.here.stop()
    assert all(send(network, case) for case in TO_THE_OTHER_SIDE + LED_TO_UXFRM), "after SIGTERM the host is as it was"


@pytest.mark.parametrize("family", (4, 6))
def test_protected_traffic_is_not_touched(family, network):
    """From host to host as well: neighbours are found by plain packets."""
    association = Association(GCM_128, "transport", family, family)
    network.here.start(association.lines(HERE, THERE), guard="require")
    network.there.start(association.lines(THERE, HERE), guard="require")
    for namespace, side in ((network.left, THERE), (network.right, HERE)):
        namespace.ip(f"neigh del {side.outer[family]} dev {DEVICE}")
    network.between.seen()
    network.left.ping(HERE.outer[family], THERE.outer[family])
    with network.right.entered():
        echo.transfer(THERE.outer[family], HERE.outer[family], 100_000)
    assert_no_plaintext(network.between.seen())
    assert network.refused() == 0


def test_policies_and_default_in_their_order(network):
    """What blocks and what lets pass, and what no policy is for."""
    pass_one = f"xfrm policy add src {ALL[4]} dst 10.2.0.1/32 proto udp dport 9 dir out priority 1"
    block = f"xfrm policy add src {ALL[4]} dst {NET[4]} dir out priority 2 action block"
    network.here.start([pass_one, block, "xfrm policy setdefault out block"], guard="require")
    assert send(network, (bound, 4, "10.2.0.1"))
    assert not send(network, (bound, 4, "10.2.0.2"))
    assert not send(network, (bound, 4, THERE.outer[4]))
    with network.left.entered(), datagram_socket(4) as made, pytest.raises(PermissionError):
        made.sendto(echo.MARKER, (THERE.outer[4], 9))
    with network.left.entered(), datagram_socket(4) as made:
        made.sendto(echo.MARKER, ("127.0.0.1", 9))
    assert plain(network) == 1
    assert network.here.statistics().get("XfrmOutPolBlock", 0) >= 3
    network.here.stop()


def test_policies_that_come_and_go_take_their_rules_along(network):
    network.here.start([], guard="require", more="\n[control]\nenabled = true\n")
    case = TO_THE_OTHER_SIDE[0]
    assert send(network, case)
    ends = f"src {ALL[4]} dst {NET[4]}"
    network.here.ip(f"xfrm policy add {ends} dir out action block")
    assert not send(network, case)
    network.here.ip(f"xfrm policy add {ends} dir out ptype sub action allow")
    assert not send(network, case)
    network.here.ip(f"xfrm policy update {ends} dir out action allow")
    assert send(network, case)
    network.here.ip("xfrm policy setdefault out block")
    assert send(network, case)
    network.here.ip("xfrm policy flush")
    assert send(network, case), "the sub policy is still there"
    network.here.ip("xfrm policy flush ptype sub")
    assert not send(network, case)
    network.here.ip("xfrm policy setdefault out accept")
    assert send(network, case)
    network.here.stop()
