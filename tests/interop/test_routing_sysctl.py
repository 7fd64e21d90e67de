"""Settings of the host that what is led into the TUN, or comes out of it, depends on: checks of
ways back, forwarding, MTU, and /proc/sys read-only."""

import socket
import time

import pytest

import echo
import patience
import prerequisite
from association import GCM_128, Association
from gateway import CONTROLLED
from routing import ALL, NEIGHBOUR, NET, SOCKETS, Pair, datagrams
from topology import HERE, THERE


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Pair(uxfrm) as made:
        yield made


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
    """The TUN takes less than the wire: an unbound socket's large datagrams come as fragments,
    or are refused, and none is lost in silence."""
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
    """Set for one device alone, it is 0 for those that come later: what was decrypted for others
    was lost in silence."""
    def forwards():
        return network.left.run("cat", "/proc/sys/net/ipv4/conf/uxfrm0/forwarding").strip()

    network.left.run("sysctl", "-qw", "net.ipv4.conf.all.forwarding=0")
    network.here.start([])
    assert forwards() == "0"
    network.left.run("sysctl", "-qw", "net.ipv4.conf.wire0.forwarding=1")
    patience.wait_for(lambda: forwards() == "1", "the TUN forwards")
    assert "net.ipv4.conf.uxfrm0.forwarding is 1 now" in network.here.log()
    network.here.stop()
    network.here.start([])
    assert forwards() == "1"


READ_ONLY = """#!/bin/sh
exec unshare -m sh -c 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"' sh {uxfrm} "$@"
"""


def test_where_settings_can_t_be_made_it_is_said_and_packets_go_their_ways(network, uxfrm, tmp_path):
    """/proc/sys is read-only, as in a container."""
    binary = tmp_path / "uxfrm"
    binary.write_text(READ_ONLY.format(uxfrm=uxfrm))
    binary.chmod(0o755)
    network.left.run("sysctl", "-qw", "net.ipv4.conf.all.forwarding=0", "net.ipv4.conf.wire0.forwarding=1", "net.ipv4.conf.all.rp_filter=1")
    network.here = network.gateway(binary, network.left)
    network.start(4, [(ALL[4], NET[4], "", True)])
    for said in ("rp_filter can't be set to 2", "net.ipv4.conf.uxfrm0.forwarding is 0 and can't be set"):
        assert said in network.here.log()
    with network.left.entered():
        for kind in SOCKETS:
            kind(4, THERE.inner[4], HERE.outer[4])
            assert network.kinds() == ["esp"], kind
            kind(4, NEIGHBOUR[4], HERE.outer[4])
            assert network.kinds() == ["plain"], kind
    network.here.stop()
