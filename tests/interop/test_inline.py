"""Inline mode: gateways that forward between two devices past the host's stack.

    10.1.0.2                                                                            10.2.0.2
    ┌─ host left ─┐    ┌─ left ────────────────┐  veth  ┌─ right ───────────────┐    ┌─ host right ─┐
    │        eth0 ┼────┼ lan0  inline    wire0 ┼────────┼ wire0   inline   lan0 ┼────┼ eth0         │
    └─────────────┘    └───────────────────────┘   ▲    └───────────────────────┘    └──────────────┘
                       10.1.0.1        10.9.0.1  wire   10.9.0.2        10.2.0.1

The gateways' kernels may forward, and have all routes: what uxfrm does not keep from them passes in
the clear, and is seen.

All is tried with packet sockets at both gateways, and with AF_XDP at the right one: at the left
one's end of the wire, where it is watched, AF_XDP would hide what passes.
"""

import contextlib
import socket
import struct
import subprocess
import time

import pytest

import echo
import patience
import prerequisite
import topology
import wire
from association import CBC_SHA256, GCM_128, secret
from gateway import Gateway
from namespace import UNANSWERED_SECONDS, ping_command
from refusing import Refusing

INLINE = """
[inline]
protected = "lan0"
wire = "wire0"
protected_by = "{0}"
wire_by = "{0}"
"""
PACKET, XDP = "af-packet", "af-xdp"
IN_UDP = "encap espinudp 4500 4500 0.0.0.0"
HOSTS = {4: ("10.1.0.2", "10.2.0.2"), 6: ("fd01::2", "fd02::2")}
NETS = {4: ("10.1.0.0/24", "10.2.0.0/24"), 6: ("fd01::/64", "fd02::/64")}
OUTER = ("10.9.0.1", "10.9.0.2")
TCP_BYTES = 4_000_000
DATAGRAMS = 400
FLUSHES = 60
BESIDE_FLUSH = 32  # fewer than wait for a neighbour
LOST_AT_MOST = 5


def lines(left_first, transform=GCM_128, extra=""):
    """The same states at both ends, and policies for both families: `left_first` says whose."""
    ends = (0, 1) if left_first else (1, 0)
    states = [
        f"xfrm state add src {OUTER[a]} dst {OUTER[b]} proto esp spi {0x1000 + b:#x} reqid 1 mode tunnel"
        f" {transform.words(secret('inline', transform.name, extra, a))} {extra} flag af-unspec"
        for a, b in ((0, 1), (1, 0))
    ]
    policies = []
    for family in (4, 6):
        here, there = (NETS[family][end] for end in ends)
        outwards = f"tmpl src {OUTER[ends[0]]} dst {OUTER[ends[1]]} proto esp reqid 1 mode tunnel"
        inwards = f"tmpl src {OUTER[ends[1]]} dst {OUTER[ends[0]]} proto esp reqid 1 mode tunnel"
        policies.append(f"xfrm policy add src {here} dst {there} dir out {outwards}")
        policies += [f"xfrm policy add src {there} dst {here} dir {way} {inwards}" for way in ("in", "fwd")]
    return states + policies


class InlineSites(topology.Sites):
    """`Sites`, whose kernels would forward whatever uxfrm leaves to them."""

    def _build(self, uxfrm, by=PACKET, workers=1):
        super()._build()
        self.uxfrm = str(uxfrm)
        self.by = by
        self.here, self.there = (Gateway(uxfrm, namespace, workers=workers) for namespace in (self.left, self.right))
        for gateway in (self.here, self.there):
            self.callback(gateway.close)
            self.gateways.append(gateway)

    def start(self, **options):
        self.here.start(lines(True, **options), more=INLINE.format(PACKET))
        self.there.start(lines(False, **options), more=INLINE.format(self.by))
        self.between.seen()

    def ping(self, family, **options):
        left, right = HOSTS[family]
        self.left_host.ping(left, right, **options)
        self.right_host.ping(right, left, **options)

    def transfer(self, family):
        left, right = HOSTS[family]
        with self.left_host.entered():
            echo.transfer(left, right, TCP_BYTES)

    def datagrams(self, family, size):
        """How many of some datagrams to the other host come back."""
        left, right = HOSTS[family]
        of = socket.AF_INET if family == 4 else socket.AF_INET6
        with contextlib.ExitStack() as stack:
            with self.right_host.entered():
                far = stack.enter_context(socket.socket(of, socket.SOCK_DGRAM))
                far.bind((right, 7200))
                far.settimeout(patience.SECONDS)
            with self.left_host.entered():
                near = stack.enter_context(socket.socket(of, socket.SOCK_DGRAM))
                near.bind((left, 7201))
                near.settimeout(patience.SECONDS)
            payload = (echo.MARKER * size)[:size]
            arrived = 0
            for _ in range(DATAGRAMS):
                near.sendto(payload, (right, 7200))
                data, sender = far.recvfrom(65536)
                far.sendto(data, sender)
                arrived += near.recvfrom(65536)[0] == payload
            return arrived


@pytest.fixture(params=[PACKET, XDP])
def sites(uxfrm, request):
    prerequisite.packet_filter()
    with InlineSites(uxfrm, request.param) as made:
        yield made


def test_the_wire_shows_plaintext_where_there_is_any(sites):
    """The counter-test of all the others: without uxfrm the kernels forward in the clear."""
    sites.between.seen()
    sites.left_host.ping(*HOSTS[4])
    with pytest.raises(AssertionError, match="in the clear"):
        wire.assert_no_plaintext(sites.between.seen())


@pytest.mark.parametrize("extra", ["", IN_UDP], ids=["esp", "esp-in-udp"])
@pytest.mark.parametrize("family", [4, 6])
def test_ping_tcp_and_udp(family, extra, sites):
    sites.start(extra=extra)
    sites.ping(family)
    sites.transfer(family)
    assert sites.datagrams(family, 22) == DATAGRAMS
    assert sites.datagrams(family, 1372) == DATAGRAMS
    wire.assert_only("esp-in-udp" if extra else "esp", sites.between.seen())
    sites.here.stop()
    sites.there.stop()


@pytest.mark.parametrize("by", [PACKET, XDP])
def test_cbc_and_several_workers(by, uxfrm):
    """With AF_XDP the second worker has no queue of the device, and what it sends goes by its
    packet socket."""
    prerequisite.packet_filter()
    with InlineSites(uxfrm, by, 2) as sites:
        sites.start(transform=CBC_SHA256)
        sites.ping(4)
        sites.transfer(4)
        sites.transfer(6)
        wire.assert_only("esp", sites.between.seen())


def test_the_gateways_are_two_hops_and_tell_whose_last_one_it_was(sites):
    """Each of them once: the kernels do not answer as well."""
    sites.start()
    assert "ttl=62" in sites.left_host.run("ping", "-c1", "-w", str(patience.SECONDS), HOSTS[4][1])
    for hops, address in ((1, "10.1.0.1"), (2, "10.2.0.1")):
        said = patience.wait_for(lambda: told_of_the_last_hop(sites, hops), f"{address} does not tell")
        assert f"From {address} icmp_seq=1 Time to live exceeded" in said and "+1 errors" in said
    wire.assert_only("esp", sites.between.seen())


def told_of_the_last_hop(sites, hops):
    """What ping said, if somebody told it; the first answer may come before the way back is
    known."""
    said = sites.left_host.run("ping", "-c1", "-W1", "-t", str(hops), HOSTS[4][1], check=False)
    return said if "exceeded" in said else None


def test_large_packets(sites):
    """Senders learn the path's MTU; fragments of what may be cut go through."""
    sites.start()
    for family, size in ((4, 1472), (6, 1452)):
        left, right = HOSTS[family]
        told = sites.left_host.run("ping", "-c2", "-i0.2", "-W2", "-M", "do", "-s", str(size), right, check=False)
        assert "mtu" in told.lower(), told
        sites.left_host.ping(left, right, size=4000)
    wire.assert_only("esp", sites.between.seen())


def test_datagrams_in_fragments_pass_beside_a_policy_for_a_port(sites):
    """They are put together then; IPv6 leaves by the tunnel in pieces again, as the far gateway
    may not cut it."""
    elsewhere = "xfrm policy add src fd77::/64 dst fd78::/64 proto udp dport 5 dir out action block"
    sites.here.start([*lines(True), elsewhere], more=INLINE.format(PACKET))
    sites.there.start([*lines(False), elsewhere], more=INLINE.format(sites.by))
    sites.between.seen()
    for family in (4, 6):
        sites.ping(family)
        assert sites.datagrams(family, 4000) == DATAGRAMS
    wire.assert_only("esp", sites.between.seen())


def test_the_gateway_itself_stays_reachable(sites):
    """ARP, neighbour discovery and what is for the gateway are the host's; between gateway and
    protected networks too, by ESP."""
    sites.start()
    sites.left_host.ping("10.1.0.2", "10.1.0.1")
    sites.left_host.ping("fd01::2", "fd01::1")
    sites.left.run("ping", "-c2", "-i0.2", "-W2", "-I", "10.1.0.1", "10.2.0.2")
    sites.left_host.ping("10.1.0.2", "10.2.0.1")
    wire.assert_only("esp", sites.between.seen())
    sites.left.run("ping", "-c2", "-i0.2", "-w", str(patience.SECONDS), "10.9.0.2")


@pytest.mark.parametrize("by", [PACKET, XDP])
def test_nothing_passes_after_a_crash(by, uxfrm):
    """The kernels have routes and may forward; they get nothing to forward until uxfrm runs
    again."""
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites:
        crash(sites, INLINE.format(by))


def crash(sites, inline):
    sites.start()
    sites.here.stop()
    sites.here.start(lines(True), more=inline)
    sites.ping(4)
    sites.here.kill()
    sites.between.seen()
    for family in (4, 6):
        left, right = HOSTS[family]
        sites.left_host.run(*ping_command(left, right, echo.MARKER, 2, seconds=UNANSWERED_SECONDS).split(), check=False)
        sites.right_host.run(*ping_command(right, left, echo.MARKER, 2, seconds=UNANSWERED_SECONDS).split(), check=False)
    wire.assert_no_plaintext(sites.between.seen())
    sites.here.start(lines(True), more=inline)
    sites.ping(4)
    sites.here.stop()
    assert "uxfrm_inline" not in sites.left.run("nft", "list", "tables")


def test_host_mode_after_a_crash_gets_the_packets_of_inline_mode(uxfrm):
    """The table that kept them out stayed for ever: no ESP came to the gateway, and its host
    forwarded nothing."""
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites:
        sites.start()
        sites.ping(4)
        sites.here.kill()
        sites.here.start(lines(True))
        sites.between.seen()
        sites.ping(4)
        sites.ping(6)
        wire.assert_only("esp", sites.between.seen())
        assert "uxfrm_inline" not in sites.left.run("nft", "list", "tables")
        sites.here.stop()


FOU_PORT = struct.pack("!H", 5556)


def test_esp_that_the_hosts_stack_has_is_opened(sites):
    """What came in FOU, which a receive port takes off; and what is sent to the gateway by the
    protected side."""
    fou = f"{INLINE}\n[tunnel]\nbatch = [\"fou.batch\"]\n"
    for gateway, by, number in ((sites.here, PACKET, 0), (sites.there, sites.by, 1)):
        (gateway.directory / "fou.batch").write_text("ip fou add port 5556 ipproto 50\n")
        out = f"state add src {OUTER[number]} "
        more = " encap espinudp 0 5556 0.0.0.0"
        gateway.start([line + more if out in line else line for line in lines(number == 0)], more=fou.format(by))
    sites.between.seen()
    sites.ping(4)
    sites.transfer(6)
    # From any port, that of ESP in UDP too.
    others = [frame for _, frame in sites.between.seen() if frame[23] != wire.UDP or frame[36:38] != FOU_PORT]
    assert {wire.protocol(frame) for frame in others} <= {"housekeeping"}, [frame.hex() for frame in others]
    with sites.left_host.entered(), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ESP) as sender:
        sender.sendto(b"SPI!" * 10, ("10.1.0.1", 0))
    sites.ping(4)
    assert sites.here.statistics()["XfrmInNoStates"] == 1


def tagged(destination, source, vlan, ends, payload):
    """A frame with a tag of priority 7: a datagram to port 7300."""
    total = 28 + len(payload)
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, total, 1, 0, 64, socket.IPPROTO_UDP, 0, *map(socket.inet_aton, ends))
    summed = sum(struct.unpack("!10H", header))
    header = header[:10] + struct.pack("!H", ~(summed + (summed >> 16)) & 0xFFFF) + header[12:]
    macs = b"".join(bytes.fromhex(mac.replace(":", "")) for mac in (destination, source))
    return macs + struct.pack("!HHH", 0x8100, 0xE000 | vlan, 0x0800) + header + struct.pack("!HHHH", 9, 7300, total - 20, 0) + payload


def test_frames_with_a_priority_and_no_vlan_pass(sites):
    """Tags of VLAN 0, as many switches and cards send them: once each, in ESP. Those of a VLAN
    don't."""
    sites.start()
    sites.ping(4)
    sites.between.seen()
    sides = [(sites.left_host, sites.left, HOSTS[4]), (sites.right_host, sites.right, HOSTS[4][::-1])]
    for (host, gateway, ends), (far, _, _) in zip(sides, reversed(sides)):
        with far.entered():
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with host.entered():
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with receiver, sender:
            receiver.bind((ends[1], 7300))
            sender.bind(("eth0", 0))
            for number in range(20):
                vlan = 5 * (number % 2)
                payload = echo.MARKER + bytes([number])
                sender.send(tagged(gateway.mac("lan0"), host.mac("eth0"), vlan, ends, payload))
            receiver.settimeout(patience.SECONDS)
            heard = [receiver.recv(100)[-1] for _ in range(10)]
            assert heard == list(range(0, 20, 2))
            receiver.settimeout(0.2)
            with pytest.raises(TimeoutError):
                receiver.recv(100)
    wire.assert_only("esp", sites.between.seen())


def test_forged_plain_packets_from_the_wire_do_not_pass(sites):
    sites.start()
    sites.ping(4)
    sites.there.stop()  # from now on the right kernel forwards in the clear
    told = sites.right_host.run(*ping_command(*reversed(HOSTS[4]), echo.MARKER, 3, seconds=UNANSWERED_SECONDS).split(), check=False)
    assert "100% packet loss" in told
    assert sites.here.statistics()["XfrmInTmplMismatch"] == 3


def test_routes_and_neighbours_may_change(sites):
    """A neighbour with another address, a route by another way: packets follow."""
    sites.start()
    sites.ping(4)
    sites.right_host.ip("link set eth0 down")
    sites.right_host.ip("link set eth0 address 02:00:00:00:00:77")
    sites.right_host.ip("link set eth0 up")
    sites.right_host.ip("route replace default via 10.2.0.1")
    sites.right_host.run("ping", "-c1", "-W2", "10.2.0.1")
    sites.ping(4)
    sites.left_host.ip("addr add 10.1.5.5/32 dev lo")
    sites.left.ip("route add 10.1.5.5 via 10.1.0.2")
    sites.left.ip("route add unreachable 10.2.0.7")
    sites.left_host.ping(*HOSTS[4])


@pytest.mark.parametrize("device", ["lan0", "wire0"])
def test_devices_may_get_other_names(device, sites):
    """Their sockets stay with them, and the host's stack is kept out as before: otherwise it
    would forward each packet once more."""
    sites.start()
    sites.ping(4)
    sites.right.ip(f"link set {device} name other0")
    for family in (4, 6):
        for end, (here, there) in ((sites.left_host, HOSTS[family]), (sites.right_host, HOSTS[family][::-1])):
            assert "duplicates" not in end.run(*ping_command(here, there, echo.MARKER, 3).split())
    wire.assert_only("esp", sites.between.seen())


def test_neighbours_that_kernels_forget_cost_no_packets(sites):
    """They are found again while packets wait for them: of 1,920 from host to host, beside which
    all neighbours go 60 times, next to none are lost."""
    sites.start()
    sites.ping(4)
    sites.ping(6)
    lost = {4: 0, 6: 0}
    for number in range(FLUSHES):
        family = (4, 6)[number % 2]
        lost[family] += beside_flush(sites, family, number)
        assert sum(lost.values()) <= LOST_AT_MOST, f"lost by family: {lost}, after {number + 1} flushes"


def beside_flush(sites, family, number):
    """Sends some datagrams while both gateways' kernels forget their neighbours; how many don't
    arrive."""
    left, right = HOSTS[family]
    of = socket.AF_INET if family == 4 else socket.AF_INET6
    with sites.right_host.entered():
        far = socket.socket(of, socket.SOCK_DGRAM)
    with sites.left_host.entered():
        near = socket.socket(of, socket.SOCK_DGRAM)
    with far, near:
        far.bind((right, 7200))
        far.settimeout(10)
        flush = ["ip", "-n", "", "neigh", "flush", "dev", ""]
        flushing = []
        for gateway, device in ((sites.left, "wire0"), (sites.right, "lan0")):
            flush[2], flush[-1] = gateway.name, device
            flushing.append(subprocess.Popen(flush))
        for place in range(BESIDE_FLUSH):
            near.sendto(echo.MARKER + bytes([number, place]), (right, 7200))
            time.sleep(0.001)
        assert [process.wait() for process in flushing] == [0, 0]
        arrived = set()
        with contextlib.suppress(TimeoutError):
            while len(arrived) < BESIDE_FLUSH:
                arrived.add(far.recv(100))
        return BESIDE_FLUSH - len(arrived)


def test_links_may_go_down_and_come_back(sites):
    sites.start()
    for device, end, far in (("wire0", sites.left, "wire0"), ("lan0", sites.right_host, "eth0")):
        sites.ping(4)
        sites.right.ip(f"link set {device} down")
        sites.left_host.run(*ping_command(*HOSTS[4], echo.MARKER, 1, seconds=UNANSWERED_SECONDS).split(), check=False)
        sites.right.ip(f"link set {device} up")
        end.wait_for_carrier(far)
        if device == "wire0":
            sites.right.ip("route add default via 10.9.0.1")
        sites.ping(4)
    sites.transfer(4)


def test_a_route_that_comes_is_the_first_packets(sites):
    """Where none led before: what waits for the answer is not told that there is none."""
    sites.start()
    left, right = HOSTS[4]
    for _ in range(2):
        sites.right.ip(f"route add unreachable {right}")
        hears(sites.there)
        once = ping_command(left, right, echo.MARKER, 1, seconds=UNANSWERED_SECONDS).split()
        sites.left_host.run(*once, check=False)  # may go as before
        assert "0 received" in sites.left_host.run(*once, check=False)
        sites.right.ip(f"route delete unreachable {right}")
        hears(sites.there)
        sites.left_host.ping(left, right, count=1)


def hears(gateway):
    """Until the gateway has heard what the kernel told before: when it takes the second request,
    it has read all that was there with the first."""
    for _ in range(2):
        gateway.stat()


def test_a_neighbour_that_does_not_answer_is_named_and_told(sites):
    sites.start()
    told = sites.left_host.run("ping", "-c1", "-W6", "10.2.0.99", check=False)
    assert "Destination Host Unreachable" in told
    reasons = sites.right.run(sites.uxfrm, "stat", "--reasons")
    counts = dict(line.split() for line in reasons.splitlines())
    assert int(counts["forward_no_neighbour"]) == 1
    sites.ping(4)
    wire.assert_only("esp", sites.between.seen())


def test_a_program_of_ours_takes_nothing_but_esp_from_the_kernel(uxfrm):
    """By AF_XDP at the left gateway: ESP passes unseen by its kernel, all else is seen there;
    and the program goes with its process."""
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites:
        sites.start()
        sites.here.stop()
        sites.here.start(lines(True), more=INLINE.format(XDP))
        assert "AF_XDP: frames come from the kernel" in sites.here.log()
        assert all("xdp" in sites.left.ip(f"link show {device}") for device in ("lan0", "wire0"))
        sites.between.seen()
        sites.ping(4)
        assert sites.datagrams(6, 1372) == DATAGRAMS
        sites.left.run("ping", "-c2", "-i0.2", "-w", str(patience.SECONDS), "10.9.0.2")
        seen = {wire.protocol(frame) for _, frame in sites.between.seen()}
        assert "esp" not in seen
        assert "ipv4 protocol 1" in seen
        sites.here.kill()
        deadline = time.monotonic() + patience.SECONDS
        while any("xdp" in sites.left.ip(f"link show {device}") for device in ("lan0", "wire0")):
            assert time.monotonic() < deadline, "the program stays when its process has ended"
            time.sleep(0.01)


def test_new_addresses_of_the_gateway_are_the_kernels(uxfrm):
    """As they come and go, what is to them by the protected side is left to it."""
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites:
        sites.start()
        sites.here.stop()
        sites.here.start(lines(True), more=INLINE.format(XDP))
        sites.left.ip("addr add 10.1.0.77/32 dev lo")
        wait_for_answer(sites.left_host, "10.1.0.77")
        sites.left.ip("addr del 10.1.0.77/32 dev lo")
        sites.left.ip("route add 10.1.0.77 via 10.1.0.2")
        sites.left_host.ip("addr add 10.1.0.77/32 dev lo")
        wait_for_answer(sites.right_host, "10.1.0.77")
        sites.right_host.ping("10.2.0.2", "10.1.0.77")


def wait_for_answer(host, address, seconds=patience.SECONDS):
    """Until pings from there are answered: a gateway hears of what has changed at its next turn,
    which is late on a busy machine."""
    deadline = time.monotonic() + seconds
    while "1 received" not in (said := host.run("ping", "-c1", "-W1", address, check=False)):
        assert time.monotonic() < deadline, f"{address} does not answer:\n{said}"


def test_a_new_address_is_the_kernels_also_where_that_could_not_be_told_at_once(uxfrm, tmp_path):
    """The kernel was out of memory for a moment: the address was out of reach until something
    else changed."""
    prerequisite.packet_filter()
    prerequisite.programs(cc="gcc libc6-dev")
    with InlineSites(uxfrm) as sites:
        kernel = Refusing(tmp_path, uxfrm)
        gateway = sites.gateway(kernel.binary, sites.left)
        gateway.start(lines(True), more=INLINE.format(PACKET))
        kernel.refuse()
        sites.left.ip("addr add 10.1.0.7/24 dev lan0")
        assert "0 received" in sites.left_host.run("ping", "-c1", "-W1", "10.1.0.7", check=False)
        told = "the host's stack is kept from packets to its new addresses"
        patience.wait_for(lambda: told in gateway.log())
        assert gateway.log().count(told) == 1
        kernel.relent()
        wait_for_answer(sites.left_host, "10.1.0.7")
        gateway.stop()


def test_a_device_that_can_not_is_named(uxfrm):
    """A bridge's driver takes no program."""
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites:
        sites.left.ip("link add bridge0 type bridge")
        with pytest.raises(AssertionError) as refused:
            sites.here.start(lines(True), more=INLINE.format(XDP).replace("wire0", "bridge0"))
        expected = '`wire_by = "af-xdp"` in [inline]: bridge0: the driver takes no XDP program in native mode'
        assert expected in str(refused.value)


def test_a_start_that_fails_once_nothing_passes_says_so(uxfrm):
    """The table is up before rings are made; frames of this MTU have no room in them."""
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites:
        sites.left.ip("link set wire0 mtu 9000")
        with pytest.raises(AssertionError, match="frames of 9014 bytes don't fit") as refused:
            sites.here.start(lines(True), more=INLINE.format(XDP))
        assert "nothing passes between the devices of [inline] until uxfrm runs again" in str(refused.value)
        assert "uxfrm_inline" in sites.left.run("nft", "list", "tables")
