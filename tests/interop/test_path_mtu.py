"""The path to the peer takes less than the link, as only a router on the way tells: the gateway has
to learn that, and to say it to its senders.

The kernel learns what routers say of what its sockets sent, and refuses what is longer; uxfrm
hears both, and asks it then. TCP over a path like this stands still where anything of that is
missing, as all of its full segments are lost.
"""

import re
import socket

import pytest

import echo
import prerequisite
import topology
import wire
from association import GCM_128, Association, host_prefix, secret
from gateway import CONTROLLED, Gateway
from namespace import veth
from topology import HERE

MTU = 1300
TCP_BYTES = 400_000
TRIES = 60
IP_MTU_DISCOVER, IP_MTU, IP_PMTUDISC_DONT, IP_PMTUDISC_DO = 10, 14, 0, 2
IN_UDP = "encap espinudp 4500 4500 0.0.0.0"
FAR = topology.GatewaysBehindRouter.FAR
CASES = [
    Association(GCM_128, "tunnel", 4, 4),
    Association(GCM_128, "tunnel", 4, 4, IN_UDP),
    Association(GCM_128, "transport", 4, 4),
    # 1280 bytes must go through, and only do in fragments.
    Association(GCM_128, "tunnel", 6, 6),
    Association(GCM_128, "tunnel", 6, 4, IN_UDP),
    Association(GCM_128, "tunnel", 6, 6, IN_UDP),
    Association(GCM_128, "transport", 6, 6),
]


INLINE = """
[inline]
protected = "lan0"
wire = "wire0"
"""
OUTER = ("10.9.0.1", "10.8.0.2")
HOSTS = {4: ("10.1.0.2", "10.2.0.2"), 6: ("fd01::2", "fd02::2")}
NETS = {4: ("10.1.0.0/24", "10.2.0.0/24"), 6: ("fd01::/64", "fd02::/64")}


class InlineSites(topology.Sites):
    """Sites whose gateways run in inline mode, and between them a router with a narrow link
    behind it."""

    names = "path-"

    def _join(self):
        router = self.namespace("path-router")
        veth(self.left, "wire0", router, "near")
        veth(router, "far", self.right, "wire0")
        router.address("near", "10.9.0.254/24")
        router.address("far", "10.8.0.254/24")
        router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        for gateway, address, hop in zip((self.left, self.right), OUTER, ("10.9.0.254", "10.8.0.254"), strict=True):
            gateway.address("wire0", f"{address}/24")
            gateway.ip(f"route add default via {hop}")
            gateway.run("sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
        router.ip(f"link set far mtu {MTU}")
        self.right.ip(f"link set wire0 mtu {MTU}")
        self.between = self.wire(self.left, "wire0")


def inline_lines(ends, extra):
    here, there = ends
    states = [
        f"xfrm state add src {OUTER[a]} dst {OUTER[b]} proto esp spi {0x1000 + b:#x} reqid 1 mode tunnel"
        f" {GCM_128.words(secret('narrow', a))} {extra} flag af-unspec"
        for a, b in ((0, 1), (1, 0))
    ]
    outwards = f"tmpl src {OUTER[here]} dst {OUTER[there]} proto esp reqid 1 mode tunnel"
    inwards = f"tmpl src {OUTER[there]} dst {OUTER[here]} proto esp reqid 1 mode tunnel"
    for nets in NETS.values():
        states.append(f"xfrm policy add src {nets[here]} dst {nets[there]} dir out {outwards}")
        states += [f"xfrm policy add src {nets[there]} dst {nets[here]} dir {way} {inwards}" for way in ("in", "fwd")]
    return states


def name(association):
    return f"{association}{'-in-udp' if association.extra else ''}"


@pytest.fixture
def network(uxfrm):
    with topology.GatewaysBehindRouter(MTU) as network:
        network.here, network.there = network.gateway(uxfrm, network.left), network.gateway(uxfrm, network.right)
        yield network


def lines(association, here, there):
    """As strongSwan has them: in transport mode a template names no ends."""
    made = association.lines(here, there)
    return [re.sub(r"tmpl src \S+ dst \S+", "tmpl", line) for line in made] if association.mode == "transport" else made


def start(network, association, wire=""):
    network.here.start(lines(association, HERE, FAR), wire=wire)
    network.there.start(lines(association, FAR, HERE))
    network.between.seen()
    return association.endpoints(HERE), association.endpoints(FAR)


@pytest.mark.parametrize("association", CASES, ids=name)
def test_tcp_over_a_path_that_takes_less_than_the_link(association, network):
    here, there = start(network, association)
    network.left.ping(here, there)
    with network.left.entered():
        echo.transfer(here, there, TCP_BYTES)
    wire.assert_no_plaintext(network.between.seen())
    network.here.stop()
    network.there.stop()


@pytest.mark.parametrize("extra", ["", IN_UDP], ids=["esp", "esp-in-udp"])
@pytest.mark.parametrize("mode", ["tunnel", "transport"])
@pytest.mark.parametrize("family", [4, 6])
def test_it_is_learned_where_esp_leaves_past_the_kernel(family, mode, extra, network):
    """With AF_XDP no socket refuses what is too long. The gateway hears what routers say."""
    here, there = start(network, Association(GCM_128, mode, family, family, extra), 'af_xdp = "wire0"')
    network.left.ping(here, there)
    with network.left.entered():
        echo.transfer(here, there, TCP_BYTES)


@pytest.mark.parametrize("extra", ["", IN_UDP], ids=["esp", "esp-in-udp"])
@pytest.mark.parametrize("family", [4, 6])
def test_inline_mode_learns_it_as_well(family, extra, uxfrm):
    prerequisite.packet_filter()
    with InlineSites() as sites:
        for ends, namespace in (((0, 1), sites.left), ((1, 0), sites.right)):
            sites.gateway(uxfrm, namespace).start(inline_lines(ends, extra), more=INLINE)
        sites.left_host.ping(*HOSTS[family])
        sites.between.seen()
        with sites.left_host.entered():
            echo.transfer(*HOSTS[family], TCP_BYTES)
        wire.assert_no_plaintext(sites.between.seen())


TUNNELS = ["ipip", "gre encap fou encap-sport auto encap-dport 5555", "ipip encap gue encap-sport auto encap-dport 5556"]


@pytest.mark.parametrize("narrow", ["router", "link"])
@pytest.mark.parametrize("kind", TUNNELS, ids=["ipip", "gre-fou", "ipip-gue"])
def test_tunnels_follow_the_path(kind, narrow, uxfrm):
    """Of a link that takes less than when the tunnel was made no router tells: the kernel
    refuses packets."""
    with topology.GatewaysBehindRouter(MTU if narrow == "router" else 1500) as network:
        for namespace, side, other, end in (
            (network.left, HERE, FAR, 1),
            (network.right, FAR, HERE, 2),
        ):
            network.gateway(uxfrm, namespace).start(more=CONTROLLED)
            for port in ("port 5555 ipproto 47", "port 5556 gue"):
                namespace.run(str(uxfrm), "fou", "add", *port.split())
            ends = f"remote {other.outer[4]} local {side.outer[4]}"
            name, *encap = kind.split()
            namespace.run(str(uxfrm), "link", "add", "name", "tun1", "up", "type", name, *ends.split(), *encap)
            namespace.address("tun1", f"10.5.0.{end}/30")
        network.left.ping("10.5.0.1", "10.5.0.2")
        if narrow == "link":
            network.left.ip(f"link set wire0 mtu {MTU}")
            network.router.ip(f"link set near mtu {MTU}")
        with network.left.entered():
            echo.transfer("10.5.0.1", "10.5.0.2", TCP_BYTES)


def test_senders_hear_of_the_path(network):
    here, there = start(network, CASES[0])
    for _ in range(TRIES):  # the first ones teach the kernel, and then the gateway
        told = network.left.run("ping", "-c1", "-W1", "-M", "do", "-s", "1300", "-I", here, there, check=False)
        if "mtu" in told:
            break
    # Of what the path takes: outer header 20, ESP 8 + 8 + 16, and padding to four bytes with the
    # two behind it.
    assert "mtu = 1246" in told or "mtu=1246" in told, told
    network.left.ping(here, there, size=1246 - 28)


@pytest.mark.parametrize("family", [4, 6])
def test_what_policies_let_pass_plain_fits_the_link_where_the_tun_takes_more(family, uxfrm):
    """Raw sockets cut nothing, and tell nobody."""
    with topology.PlacedGateways() as network:
        gateway = Gateway(uxfrm, network.left, mtu=9000)
        network.callback(gateway.close)
        association = Association(GCM_128, "tunnel", family, family)
        here, there = HERE.inner[family], topology.THERE.inner[family]
        protect = association.policies(HERE, topology.THERE)[0].replace(" dir out", " dir out priority 2")
        ends = f"src {host_prefix(here)} dst {host_prefix(there)}"
        passes = f"xfrm policy add {ends} proto udp dir out priority 1 action allow"
        gateway.start([association.state(HERE, topology.THERE), protect, passes])
        with network.left.entered():
            sender = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        with sender:
            sender.settimeout(5)
            sender.bind((here, 0))
            sender.connect((there, echo.PORT))
            if family == 4:
                sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
            assert long_echo(sender), gateway.stat()
            if family == 4:
                sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
                assert not long_echo(sender), "it has DF"
                assert sender.getsockopt(socket.IPPROTO_IP, IP_MTU) == 1500


def long_echo(sender):
    """Whether a datagram longer than any link comes back, once its sender has been told of the
    path."""
    sent = echo.payload(4000)
    for _ in range(3):
        try:
            sender.send(sent)
            return sender.recv(65536) == sent
        except OSError:  # the answer does not come, or the kernel knows by now that the path takes less
            pass
    return False
