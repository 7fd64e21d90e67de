"""Who tells senders how large a packet may be: the kernel, by the TUN's MTU, which follows the
tunnels; uxfrm, from an address of the gateway; and TCP's SYNs, where ICMP is lost."""

import json
import re
import socket
import struct
import subprocess

import pytest

import echo
import patience
import prerequisite
import topology
import wire
from association import GCM_128, Association, secret
from gateway import CONTROLLED, TUN, Gateway
from test_path_mtu import INLINE
from topology import HERE, THERE

AUTO = '"auto"'
# Of 1500 bytes: outer header 20, ESP 8 + 8 + 16, and padding to four bytes with the two behind it.
FITS, FITS_IN_UDP, FITS_V6, FITS_TRANSPORT = 1446, 1438, 1426, 1466
IN_UDP = "encap espinudp 4500 4500 0.0.0.0"
OUTER = ("10.9.0.1", "10.9.0.2")
NETS = {4: ("10.1.0.0/24", "10.2.0.0/24"), 6: ("fd01::/64", "fd02::/64")}
HOSTS = {4: ("10.1.0.2", "10.2.0.2"), 6: ("fd01::2", "fd02::2")}
LAN = {4: "10.1.0.1", 6: "fd01::1"}


def mtu(namespace):
    return json.loads(namespace.ip(f"-j link show dev {TUN}"))[0]["mtu"]


def tun_has(namespace, expected):
    patience.wait_for(lambda: mtu(namespace) == expected, lambda: f"MTU {mtu(namespace)}, not {expected}")


def site_lines(here, there, extra=""):
    """One tunnel for both families of the nets behind two gateways."""
    states = [
        f"xfrm state add src {OUTER[a]} dst {OUTER[b]} proto esp spi {0x1000 + b:#x} reqid 1 mode tunnel"
        f" {GCM_128.words(secret('sites', a))} {extra} flag af-unspec"
        for a, b in ((0, 1), (1, 0))
    ]
    out = f"tmpl src {OUTER[here]} dst {OUTER[there]} proto esp reqid 1 mode tunnel"
    back = f"tmpl src {OUTER[there]} dst {OUTER[here]} proto esp reqid 1 mode tunnel"
    for nets in NETS.values():
        states.append(f"xfrm policy add src {nets[here]} dst {nets[there]} dir out {out}")
        states += [f"xfrm policy add src {nets[there]} dst {nets[here]} dir {way} {back}" for way in ("in", "fwd")]
    return states


class MtuSites(topology.Sites):
    names = "mtu-"

    def start(self, uxfrm, mtu, more=""):
        self.gateways = []
        for ends, namespace in (((0, 1), self.left), ((1, 0), self.right)):
            gateway = Gateway(uxfrm, namespace, mtu=mtu)
            self.callback(gateway.close)
            gateway.start(site_lines(*ends), more=more)
            self.gateways.append(gateway)
        if "inline" in more:
            for namespace in (self.left, self.right):
                namespace.run("sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
        for hosts in HOSTS.values():
            self.left_host.ping(*hosts)


def host_configuration(mtu, more=""):
    """The gateway's table `[host]` begins with these lines."""
    return f"{mtu}\n{more}".rstrip()


@pytest.fixture
def two(uxfrm):
    with topology.PlacedGateways() as network:
        network.here = Gateway(uxfrm, network.left, mtu=AUTO)
        network.callback(network.here.close)
        yield network


@pytest.mark.parametrize(
    ("mode", "family", "extra", "expected"),
    [("tunnel", 4, "", FITS), ("tunnel", 4, IN_UDP, FITS_IN_UDP), ("tunnel", 6, "", FITS_V6), ("transport", 4, "", FITS_TRANSPORT)],
    ids=["ipv4", "in-udp", "ipv6", "transport"],
)
def test_tun_has_what_fits_into_its_tunnel_when_the_gateway_is_ready(mode, family, extra, expected, two):
    association = Association(GCM_128, mode, family, family, extra)
    two.here.start(association.lines(HERE, THERE))
    assert mtu(two.left) == expected


def test_largest_tunnel_decides_and_changes_wait_until_they_stay(two):
    in_udp = Association(GCM_128, "tunnel", 4, 4, IN_UDP)
    two.here.start(in_udp.lines(HERE, THERE), more=CONTROLLED)
    assert mtu(two.left) == FITS_IN_UDP
    other = f"src {HERE.outer[4]} dst 10.9.0.3 proto esp spi 0x77"
    two.here.ip(f"xfrm state add {other} reqid 9 mode tunnel {GCM_128.words(secret('other', 0))}")
    tun_has(two.left, FITS)
    # The link takes less: a path that lasts.
    two.left.ip("link set wire0 mtu 1400")
    tun_has(two.left, FITS - 100)
    two.left.ip("link set wire0 mtu 1500")
    two.here.ip(f"xfrm state delete {other.removesuffix(' spi 0x77')} spi 0x77")
    tun_has(two.left, FITS_IN_UDP)
    two.here.ip("xfrm state flush")
    assert mtu(two.left) == FITS_IN_UDP, "without a tunnel it stays"


def test_never_below_the_least_of_ipv6(two):
    two.left.ip("link set wire0 mtu 1300")
    two.here.start(Association(GCM_128, "tunnel", 4, 4).lines(HERE, THERE))
    assert mtu(two.left) == 1280


def test_reload_and_upgrade_keep_it(uxfrm, two):
    two.here.start(Association(GCM_128, "tunnel", 4, 4).lines(HERE, THERE), more=CONTROLLED)
    config = two.here.directory / "config.toml"
    text = config.read_text()
    config.write_text(text.replace(f"mtu = {AUTO}", "mtu = 1333"))
    two.left.run(str(uxfrm), "reload")
    assert mtu(two.left) == 1333, "the reload has set it"
    config.write_text(text.replace(f"mtu = {AUTO}", "mtu = 1279"))
    refused = two.left.run("sh", "-c", f"{uxfrm} reload 2>&1", check=False)
    assert "it has to be from 1280 to 65535" in refused and "set the MTU of the route to the peer" in refused, refused
    assert mtu(two.left) == 1333
    config.write_text(text)
    two.left.run(str(uxfrm), "reload")
    assert mtu(two.left) == FITS
    two.here.upgrade()
    assert mtu(two.left) == FITS
    two.here.stop()


def test_kernel_tells_local_senders(uxfrm, two):
    """The first SYN announces what fits, and a datagram that is too large is refused at once."""
    there = two.gateway(uxfrm, two.right)
    association = Association(GCM_128, "tunnel", 4, 4)
    two.here.start(association.lines(HERE, THERE))
    there.start(association.lines(THERE, HERE))
    here_address, there_address = HERE.inner[4], THERE.inner[4]
    with two.left.entered():
        echo.transfer(here_address, there_address, 100_000)
        with socket.create_connection((there_address, echo.PORT), source_address=(here_address, 0)) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= FITS - 40
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER: DF always
            sender.bind((here_address, 0))
            sender.connect((there_address, echo.PORT))
            sender.send(bytes(FITS - 28))
            with pytest.raises(OSError, match="Message too long"):
                for _ in range(3):  # the first one meets the MTU behind the look-up of its route
                    sender.send(bytes(FITS - 27))
    assert "out_too_big" not in two.left.run(str(uxfrm), "drops", check=False)


@pytest.mark.parametrize("setting", [AUTO, "1500"], ids=["auto", "fixed"])
@pytest.mark.parametrize("family", [4, 6])
def test_forwarded_senders_hear_from_the_gateways_address(family, setting, uxfrm):
    """With `auto` from the kernel, else from uxfrm: in both cases from the address towards them."""
    with MtuSites() as sites:
        sites.start(uxfrm, setting)
        fits = {4: FITS, 6: FITS}[family]
        header = {4: 28, 6: 48}[family]
        told = told_too_big(sites.left_host, HOSTS[family][1], fits + 1 - header)
        assert re.search(rf"From {LAN[family]} .*mtu ?= ?{fits}", told), told
        sites.left_host.ping(*HOSTS[family], size=fits - header)
        assert ("out_too_big" in sites.left.run(str(uxfrm), "drops", check=False)) is (setting != AUTO)


@pytest.mark.parametrize("family", [4, 6])
def test_local_senders_hear_from_an_own_address(family, uxfrm):
    with MtuSites() as sites:
        sites.start(uxfrm, 1500)
        header = {4: 28, 6: 48}[family]
        told = told_too_big(sites.left, HOSTS[family][1], FITS + 1 - header, "-I", LAN[family])
        assert re.search(rf"(From {LAN[family]} |local error).*mtu ?= ?{FITS}", told), told
        assert "out_too_big" in sites.left.run(str(uxfrm), "drops", check=False)


@pytest.mark.parametrize("family", [4, 6])
def test_inline_mode_answers_from_the_protected_port(family, uxfrm):
    prerequisite.packet_filter()
    with MtuSites() as sites:
        sites.start(uxfrm, AUTO, more=INLINE)
        header = {4: 28, 6: 48}[family]
        told = told_too_big(sites.left_host, HOSTS[family][1], FITS + 1 - header)
        assert re.search(rf"From {LAN[family]} .*mtu ?= ?{FITS}", told), told


def told_too_big(namespace, destination, size, *more):
    """What ping says once somebody has told it."""

    def ping():
        said = namespace.run("ping", "-c1", "-W1", "-M", "do", "-s", str(size), *more, destination, check=False)
        return said if "mtu" in said else None

    return patience.wait_for(ping, "nobody tells")


def test_tracepath_names_the_gateway(uxfrm):
    """The example in docs/mtu.md. The far gateway's guard drops what its kernel tells in plain."""
    prerequisite.packet_filter()
    prerequisite.programs(tracepath="iputils-tracepath")
    with MtuSites() as sites:
        sites.start(uxfrm, AUTO)
        said = sites.left_host.run("tracepath", "-n", "-4", HOSTS[4][1])
        assert re.search(rf"2: +{LAN[4]} .*pmtu {FITS}", said), said
        assert re.search(r"2: +no reply", said), said
        assert f"pmtu {FITS}" in said.splitlines()[-1] and HOSTS[4][1] in said, said


FILTER = """table inet lost {
    chain in { type filter hook input priority 0; icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }
}"""


@pytest.mark.parametrize("inline", [False, True], ids=["host", "inline"])
@pytest.mark.parametrize("family", [4, 6])
def test_clamped_mss_spares_tcp_the_icmp_that_is_lost(family, inline, uxfrm):
    """A filter drops ICMP before the hosts. TCP stands still without, and goes with."""
    prerequisite.packet_filter()
    more = INLINE if inline else ""
    for clamps in (False, True):
        with MtuSites() as sites:
            for host in (sites.left_host, sites.right_host):
                host.run("nft", FILTER)
            sites.start(uxfrm, host_configuration(1500, f"clamp_mss = {str(clamps).lower()}"), more=more)
            here, there = HOSTS[family]
            if clamps:
                with sites.left_host.entered():
                    echo.transfer(here, there, 400_000)
                assert announced(sites, here, there) == FITS - {4: 40, 6: 60}[family]
            else:
                assert stands_still(sites.left_host, here, there)


def stands_still(namespace, here, there):
    """Whether segments are sent again and again, and none is acknowledged."""
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    with namespace.entered():
        connection = socket.socket(family, socket.SOCK_STREAM)
    with connection:
        connection.bind((here, 0))
        connection.connect((there, echo.PORT))
        connection.setblocking(False)
        connection.send(echo.payload(50_000))
        patience.wait_for(lambda: tcp_info(connection)[0] >= 3, "it does not send again")
        return tcp_info(connection)[1] == 0


def tcp_info(connection):
    """Retransmissions of the oldest segment, and bytes that were acknowledged, the SYN excepted."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    acknowledged = struct.unpack_from("=Q", info, 120)[0]
    return info[2], max(0, acknowledged - 1)


def announced(sites, here, there):
    """The MSS that the far host sees announced: its own segments are no larger."""
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    with sites.right_host.entered():
        listener = socket.socket(family, socket.SOCK_STREAM)
    with sites.left_host.entered():
        client = socket.socket(family, socket.SOCK_STREAM)
    with listener, client:
        listener.bind((there, 7711))
        listener.listen()
        client.bind((here, 0))
        client.connect((there, 7711))
        accepted, _ = listener.accept()
        with accepted:
            # `tcpi_snd_mss` counts the timestamps' 12 bytes among what a segment has no room for.
            return struct.unpack_from("=I", accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 16)[0] + 12


def test_why_tells_which_mtu_applies(uxfrm, two):
    two.here.start(Association(GCM_128, "tunnel", 4, 4).lines(HERE, THERE))

    def asked():
        said = two.left.run(str(uxfrm), "why", "-j", HERE.inner[4], THERE.inner[4], "tcp", "443", check=False)
        return json.loads(said)["encapsulation"]

    outer = asked()
    assert (outer["path_mtu"], outer["path_mtu_origin"], outer["inner_mtu"], outer["tun_mtu"]) == (1500, "device", FITS, FITS)
    assert "fixed_tun_mtu" not in outer and "clamped_mss" not in outer
    words = two.left.run(str(uxfrm), "why", HERE.inner[4], THERE.inner[4], "tcp", "443", check=False)
    assert "1500 is the MTU of dev wire0" in words and "auto: it follows the tunnels" in words, words
    two.here.stop()
    two.left.ip(f"route add {THERE.outer[4]} dev wire0 mtu 1400")
    two.here.start(Association(GCM_128, "tunnel", 4, 4).lines(HERE, THERE))
    outer = asked()
    assert (outer["path_mtu"], outer["path_mtu_origin"], outer["tun_mtu"]) == (1400, "route", FITS - 100)


def test_why_tells_what_of_ipv6_passes_where_less_than_its_least_fits(uxfrm, two):
    two.left.ip(f"route add {THERE.outer[4]} dev wire0 mtu 1300")
    two.here.start(Association(GCM_128, "tunnel", 6, 4).lines(HERE, THERE))
    question = ("why", HERE.inner[6], THERE.inner[6], "tcp", "443")
    words = two.left.run(str(uxfrm), *question, check=False)
    assert "up to 1280 bytes pass" in words and "those above 1246 leave in fragments" in words, words
    outer = json.loads(two.left.run(str(uxfrm), *question, "-j", check=False))["encapsulation"]
    assert (outer["path_mtu"], outer["inner_mtu"], outer["overhead"]) == (1300, 1280, 54)
    [fits] = re.findall(r" size +(up to .*?);", words)
    trace = [str(uxfrm), "trace", "1", "--host", THERE.inner[6]]
    with subprocess.Popen(["ip", "netns", "exec", two.left.name, *trace], stdout=subprocess.PIPE, text=True) as tracing:

        def traced():
            two.left.run("ping", "-c1", "-W1", "-I", HERE.inner[6], THERE.inner[6], check=False)
            return tracing.poll() is not None

        patience.wait_for(traced, "a trace")
        said = tracing.stdout.read()
    assert f"  {fits}\n" in said, (fits, said)


def test_why_tells_whether_forwarded_senders_hear(uxfrm):
    """A policy for all destinations takes the kernel's ICMP to the gateway's own hosts as well. What
    `why` says is what a host behind the gateway meets."""
    with MtuSites() as sites:
        sites.start(uxfrm, FITS - 46)
        here = sites.gateways[0]
        host, there = HOSTS[4]

        def asked():
            return sites.left.run(str(uxfrm), "why", host, there, "tcp", "443", check=False)

        said = asked()
        assert "the kernel tells senders" in said and "  warn size" not in said, said
        template = f"tmpl src {OUTER[0]} dst {OUTER[1]} proto esp reqid 1 mode tunnel"
        here.ip(f"xfrm policy add src {NETS[4][0]} dst 0.0.0.0/0 dir out {template}")
        said = asked()
        own = "does not reach the sender: `policy src 10.1.0.0/24 dst 0.0.0.0/0 dir out` takes it into its tunnel"
        assert "  warn size" in said and own in said, said
        big = ("ping", "-n", "-c1", "-W1", "-M", "do", "-s", str(FITS - 28), "-I", host, there)
        said = sites.left_host.run(*big, check=False)
        assert "Frag needed" not in said and "message too long" not in said, said
        here.ip(f"xfrm policy add src {NETS[4][0]} dst {NETS[4][0]} dir out priority 0")
        here.ip(f"xfrm policy update src {NETS[4][0]} dst 0.0.0.0/0 dir out priority 9 {template}")
        said = asked()
        assert "the kernel tells senders" in said and "  warn size" not in said, said
        said = sites.left_host.run(*big, check=False)
        assert "Frag needed" in said or "message too long" in said, said


def test_route_that_takes_less_is_followed(uxfrm, two):
    """The kernel says so when it refuses the first packet that is too large for a new route, and
    keeps it as it keeps what routers tell. It is the route's all the same."""
    two.here.start(Association(GCM_128, "tunnel", 4, 4).lines(HERE, THERE))
    two.left.ip(f"route add {THERE.outer[4]} dev wire0 mtu 1400")

    def followed():
        two.left.run("ping", "-c1", "-W1", "-s", "1400", "-I", HERE.inner[4], THERE.inner[4], check=False)
        return mtu(two.left) == FITS - 100

    patience.wait_for(followed, "the route's MTU")
    assert "expires" in two.left.ip(f"route get {THERE.outer[4]}")
    said = two.left.run(str(uxfrm), "why", "-j", HERE.inner[4], THERE.inner[4], check=False)
    outer = json.loads(said)["encapsulation"]
    assert (outer["path_mtu"], outer["path_mtu_origin"]) == (1400, "route") and "path_mtu_expires" not in outer


def test_what_a_router_tells_is_the_engines_to_tell(uxfrm):
    with topology.GatewaysBehindRouter(1400) as network:
        here = Gateway(uxfrm, network.left, mtu=AUTO)
        network.callback(here.close)
        association = Association(GCM_128, "tunnel", 4, 4)
        far = topology.GatewaysBehindRouter.FAR
        here.start(association.lines(HERE, far))
        told = told_too_big(network.left, far.inner[4], FITS - 28, "-I", HERE.inner[4])
        assert re.search(rf"mtu ?= ?{FITS - 100}", told), told
        assert mtu(network.left) == FITS


HUB_NETS = ("10.1.0.0/24", "10.3.0.0/24")


def hub_lines(words=""):
    """What a hub at `THERE` has for two sites, `HERE` and one that is not there."""
    peers = (HERE.outer[4], "10.9.0.3")
    hub = THERE.outer[4]
    for number, peer in enumerate(peers, 1):
        for ends, spi in (((peer, hub), 0x100), ((hub, peer), 0x200)):
            key = GCM_128.words(secret("hub", 2 * number + spi))
            yield f"xfrm state add src {ends[0]} dst {ends[1]} proto esp spi {spi + number:#x} reqid {number} mode tunnel {key}"
    for number, (one, other) in enumerate((HUB_NETS, HUB_NETS[::-1]), 1):
        into = 3 - number
        template = "tmpl src {} dst {} proto esp reqid {} mode tunnel"
        yield f"xfrm policy add src {one} dst {other} {words} dir fwd {template.format(peers[number - 1], hub, number)}"
        yield f"xfrm policy add src {one} dst {other} {words} dir out {template.format(hub, peers[into - 1], into)}"


def hub_site_lines():
    """What the site at `HERE` has for that hub."""
    states = [line for line in hub_lines() if "xfrm state" in line and HERE.outer[4] in line]
    out = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 1 mode tunnel"
    back = f"tmpl src {THERE.outer[4]} dst {HERE.outer[4]} proto esp reqid 1 mode tunnel"
    yield from states
    yield f"xfrm policy add src {HUB_NETS[0]} dst {HUB_NETS[1]} dir out {out}"
    yield f"xfrm policy add src {HUB_NETS[1]} dst {HUB_NETS[0]} dir in {back}"


@pytest.mark.parametrize("size", [600, 1472])
def test_hub_tells_nobody_in_plain_what_came_in_esp(uxfrm, size):
    """Seen: an ICMP redirect for each packet of 600 bytes, and "fragmentation needed" for larger
    ones, both by the kernel, plain, with a quote."""
    with topology.PlacedGateways() as network:
        for namespace in (network.left, network.right):
            namespace.ip("link set wire0 mtu 9000")
        network.left.ip(f"route add {HUB_NETS[1]} via {THERE.outer[4]} src {HERE.inner[4]}")
        network.right.neighbour("wire0", network.left.mac("wire0"), "10.9.0.3")
        for peer in (HERE.outer[4], "10.9.0.3"):
            network.right.ip(f"route add {peer}/32 dev wire0 mtu 1500")
        network.right.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=1")
        site = Gateway(uxfrm, network.left, mtu=9000)
        hub = Gateway(uxfrm, network.right, mtu=AUTO)
        for gateway, lines in ((site, hub_site_lines()), (hub, hub_lines())):
            network.callback(gateway.close)
            gateway.start(lines)
        tun_has(network.right, 9000)
        network.between.seen()
        pattern = echo.MARKER[:8].hex()
        network.left.run("ping", "-c", "3", "-i", "0.3", "-W", "1", "-M", "do", "-s", str(size), "-p", pattern, "-I", HERE.inner[4], "10.3.0.7", check=False)
        frames = network.between.seen()
        assert [kind for kind in map(wire.protocol, (frame for _, frame in frames)) if kind == "esp"], "nothing came to the hub"
        quoted = [frame for _, frame in frames if echo.MARKER[:8] in frame]
        assert not quoted, quoted[0].hex()
        # Its redirects; of what is too big it tells nothing, as the TUN takes it.
        assert "out_quotes_protected" in network.right.run(str(uxfrm), "drops", check=False)
