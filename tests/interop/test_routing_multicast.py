"""IPv4 multicast: as without uxfrm unless a policy protects the group, whatever the socket says
of its way."""

import errno
import socket
import struct

import pytest

import echo
import prerequisite
from routing import ALL, NET, Pair, datagrams
from topology import HERE

GROUP, LOCAL, ELSEWHERE = "239.1.1.1", "224.0.0.251", "239.2.1.1"


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Pair(uxfrm) as made:
        yield made


def unbound(_):
    pass


def from_address(made):
    made.bind((HERE.outer[4], 0))


def from_another_address(made):
    made.bind((HERE.outer[4], 0))
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HERE.outer[4]))


def by_device(made):
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("8xI", socket.if_nametoindex("wire0")))


def bound_to_device(made):
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"wire0")


WAYS = [unbound, from_address, from_another_address, by_device, bound_to_device]


def sent(network, way, group):
    """The source of the plain packet that leaves, "esp", or "refused"."""
    with network.left.entered(), datagrams(4) as made:
        way(made)
        try:
            made.sendto(echo.MARKER, (group, 9))
        except OSError as error:
            assert error.errno == errno.EPERM, error
            assert not network.sent(0)
            return "refused"
    [frame] = network.sent(1)
    return socket.inet_ntoa(frame[26:30]) if echo.MARKER in frame else "esp"


def all_ways(network, group):
    return {way.__name__: sent(network, way, group) for way in WAYS}


def test_what_no_policy_protects_leaves_as_without_uxfrm(network):
    """Beside a full tunnel from a virtual address, and one whose better policy lets groups pass."""
    before = {group: all_ways(network, group) for group in (GROUP, LOCAL)}
    assert set(before[GROUP].values()) == {HERE.outer[4]}
    virtual = (f"{HERE.inner[4]}/32", ALL[4], "", True)
    for policies in ([virtual], [(ALL[4], "224.0.0.0/4", "", False), (ALL[4], ALL[4], "", True)], [(ALL[4], NET[4], "", True)]):
        network.start(4, policies)
        assert {group: all_ways(network, group) for group in before} == before, policies
        network.here.stop()
        network.there.stop()


@pytest.mark.parametrize("source", [f"{HERE.outer[4]}/32", ALL[4]])
def test_what_a_policy_protects_never_leaves_plain(network, source):
    """An unbound socket's goes into the tunnel. The kernel asks no route where a socket names
    its address or device: the guard refuses those."""
    network.start(4, [(source, "239.1.0.0/16", "", True)])
    for way in WAYS:
        assert sent(network, way, GROUP) == ("esp" if way is unbound else "refused"), way
        assert sent(network, way, ELSEWHERE) == HERE.outer[4], way
        assert sent(network, way, LOCAL) == HERE.outer[4], way
    assert network.here.statistics()["XfrmOutError"] == len(WAYS) - 1


def test_a_better_policy_lets_some_groups_pass(network):
    network.start(4, [(ALL[4], "224.0.0.0/24", "", False), (ALL[4], ALL[4], "", True)])
    for way in WAYS:
        assert sent(network, way, LOCAL) == HERE.outer[4], way
    assert sent(network, unbound, GROUP) == "esp"
