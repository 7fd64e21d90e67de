"""Gateways of sites: what is forwarded in fragments, and a road warrior whose LAN stays its own."""

import pytest

import charon
import echo
import ike
import patience
import prerequisite
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED
from ike import End
from routing import SECONDS, datagrams
from topology import HERE, THERE


@pytest.fixture(scope="module")
def sites():
    prerequisite.strongswan()
    with topology.Sites() as made:
        yield made


IPPROTO_IPV6, IPV6_DSTOPTS = 41, 59
# Padding. It stands behind the fragment header, before UDP: later fragments do not even tell the
# protocol.
PADDING = bytes([0, 0, 1, 4, 0, 0, 0, 0])


@pytest.mark.parametrize("family, options", [(4, b""), (6, b""), (6, PADDING)])
def test_forwarded_fragments_meet_a_policy_that_asks_for_ports(uxfrm, family, options):
    """Later ones have none (seen: all of them passed it). uxfrm judges the datagram: another
    port's leaves plain and whole."""
    association = Association(GCM_128, "tunnel", family, 4)
    nets = {4: "src 10.1.0.0/24 dst 10.2.0.0/24", 6: "src fd01::/64 dst fd02::/64"}
    host = {4: "10.2.0.2", 6: "fd02::2"}[family]
    with topology.Sites() as sites, topology.Hosts() as running:
        join_by_ipv6(sites)
        here, there = running.gateway(uxfrm, sites.left), running.gateway(uxfrm, sites.right)
        template = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 1 mode tunnel"
        net = f"{nets[family]} proto udp dport 9"
        here.start([*association.states(HERE, THERE), f"xfrm policy add {net} dir out {template}"], more=CONTROLLED)
        # What comes out of the tunnel, of which later fragments have no ports, and what comes
        # plain.
        there.start([*association.states(THERE, HERE), f"xfrm policy add {nets[family]} dir fwd {template} level use"], guard="off")
        with sites.right_host.entered():
            receivers = {port: datagrams(family) for port in (9, 10)}
        with sites.left_host.entered(), datagrams(family) as sender:
            if options:
                sender.setsockopt(IPPROTO_IPV6, IPV6_DSTOPTS, options)
            for port, kind in ((9, "esp"), (10, "plain")):
                sites.between.seen()
                with receivers[port] as receiver:
                    receiver.bind((host, port))
                    receiver.settimeout(SECONDS)
                    sent = echo.MARKER * 250
                    sender.sendto(sent, (host, port))
                    assert receiver.recv(65536) == sent
                out = [frame for outgoing, frame in sites.between.seen() if outgoing]
                assert any(echo.MARKER in frame for frame in out) is (kind == "plain")
        assert here.statistics() == {}


def join_by_ipv6(sites):
    """The gateways reach each other's nets plain, and the left host makes fragments that the TUN
    takes."""
    sites.left.address("wire0", "fd09::1/64")
    sites.right.address("wire0", "fd09::2/64")
    sites.left.ip("-6 route add default via fd09::2")
    sites.right.ip("-6 route add default via fd09::1")
    sites.left_host.ip("link set eth0 mtu 1280")


def test_a_strongswan_road_warrior_with_bypass_lan_and_a_shunt(uxfrm, sites):
    """charon's own routes stay on. LAN by its own address and plain, what the shunt passes
    plain, all else in the tunnel."""
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
        patience.wait_for(lambda: "10.1.0.0/24" in left.policies(), "bypass-lan's policies")
        lan = running.wire(sites.left, "lan0")
        sites.between.seen()

        assert "src 10.1.0.1" in sites.left.ip("route get 10.1.0.2") and "dev lan0" in sites.left.ip("route get 10.1.0.2")
        sites.left.run("ping", "-q", "-c", "3", "-i", "0.02", "-W", str(SECONDS), "-p", echo.MARKER.hex(), "10.1.0.2")
        assert sum(echo.MARKER in frame for _, frame in lan.seen()) == 6
        assert not any(wire.protocol(frame) == "esp" for _, frame in sites.between.seen())

        for elsewhere in ("10.2.0.2", "10.67.0.1"):
            sites.left.run("ping", "-q", "-c", "3", "-i", "0.02", "-W", str(SECONDS), "-p", echo.MARKER.hex(), elsewhere)
        with sites.left.entered():
            echo.transfer("10.3.0.1", "10.2.0.2", 100_000)
        wire.assert_only("esp", sites.between.seen())

        sites.left.run("ping", "-q", "-c", "3", "-i", "0.02", "-W", "0.2", "-p", echo.MARKER.hex(), "10.66.0.1", check=False)
        out = [frame for outgoing, frame in sites.between.seen() if outgoing]
        assert sum(echo.MARKER in frame for frame in out) == 3, "the shunt passes plain"
        assert left.gateway.statistics().get("XfrmOutError", 0) == 0
