"""Only what a policy protects is touched: routes and source addresses are as if uxfrm were not
there, and only then policies are asked, as in Linux."""

import socket

import pytest

import echo
import patience
import prerequisite
from refusing import Refusing
from routing import ALL, LAN, NEIGHBOUR, NET, OTHER, SOCKETS, Pair, bound, datagrams, unbound
from topology import HERE, THERE

@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Pair(uxfrm) as made:
        yield made


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
    """A gateway's policy for a net behind it, and its own neighbour within the other net (seen:
    it lost its neighbour)."""
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


def test_the_common_case_is_led_by_routes(network):
    """So a connected socket has its way into the TUN from the start; at most 32 rules, all
    before strongSwan's."""
    network.start(4, [(f"{HERE.inner[4]}/32", NET[4], "", True), (f"{HERE.inner[4]}/32", "10.2.7.0/24", "", True)])
    assert "dev uxfrm0" in network.left.ip(f"route get {THERE.inner[4]} from {HERE.inner[4]}")
    assert "dev wire0" in network.left.ip(f"route get {THERE.inner[4]} from {HERE.outer[4]}")
    for number in range(40):
        network.here.ip(f"xfrm policy add src 10.{100 + number}.0.0/16 dst 10.77.0.0/16 dir out action block")

    def early():
        numbers = [int(line.split(":")[0]) for line in network.left.ip("rule").splitlines()]
        return [number for number in numbers if 0 < number < 220]

    patience.wait_for(lambda: len(early()) == 29, "as many rules by source as there may be")
    network.here.ip("xfrm policy flush")
    patience.wait_for(lambda: len(early()) == 2, "the rules of what is gone are gone")
    network.here.stop()
    assert early() == []


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
    assert "lookup 30000" not in network.left.ip("rule")


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
