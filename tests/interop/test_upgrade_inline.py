"""`uxfrm upgrade` where devices are read past the host's stack: inline mode by packet sockets and
by AF_XDP, and host mode with `af_xdp`.

The sockets, rings and frames of one process are the next one's. Beneath it no datagram is
missing, and none leaves plain: the kernels forward what uxfrm does not keep from them.
"""

import concurrent.futures
import os
import pathlib
import signal
import struct
import time

import pytest

import patience
import prerequisite
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED
from test_inline import HOSTS, INLINE, OUTER, PACKET, XDP, InlineSites, lines
from test_upgrade import Numbered, frames_to, other_program, spoilt_configuration
from topology import HERE, THERE

UPGRADES = 4
WAIT_SECONDS = patience.SECONDS
IN_HOST_MODE = Association(GCM_128, "tunnel", 4, 4)
EXPRESS = 'af_xdp = "wire0"'


class Sites(InlineSites):
    """`InlineSites` with a control socket; the left gateway as well may have AF_XDP, and its
    wire then shows little."""

    def start(self, left_by=PACKET, **options):
        self.here.start(lines(True, **options), more=INLINE.format(left_by) + CONTROLLED)
        self.there.start(lines(False, **options), more=INLINE.format(self.by) + CONTROLLED)
        self.between.seen()

    def numbered(self):
        """Both ways."""
        left, right = HOSTS[4]
        return Numbered(self.left_host, self.right_host, left, right), Numbered(self.right_host, self.left_host, right, left)


@pytest.fixture(params=[(PACKET, 1), (PACKET, 2), (XDP, 1), (XDP, 2)], ids=lambda param: f"{param[0]}-{param[1]}")
def sites(uxfrm, request):
    prerequisite.packet_filter()
    with Sites(uxfrm, *request.param) as made:
        yield made


def assert_whole(*directions):
    for direction in directions:
        assert direction.refused == 0
        assert direction.lost() == []
        assert len(direction.arrived) == len(set(direction.arrived)), "none twice"


def assert_nothing_dropped(*gateways):
    for gateway in gateways:
        assert not {name for name in gateway.statistics() if name != "XfrmInNoPols"}, gateway.stat()


def test_no_packet_is_lost_and_none_is_plain(sites):
    sites.start()
    sites.ping(4)
    there, back = sites.numbered()
    with there, back:
        for gateway in (sites.here, sites.there) * UPGRADES:
            there.wait(200)
            back.wait(200)
            before = gateway.pid
            assert "has taken over as process" in gateway.upgrade()
            assert gateway.pid != before
    assert_whole(there, back)
    assert_nothing_dropped(sites.here, sites.there)
    wire.assert_only("esp", sites.between.seen())
    for gateway in (sites.here, sites.there):
        gateway.stop()


def test_by_rings_at_both_ends(uxfrm):
    """In both directions, and also where the kernel has had frames that were not sent yet."""
    prerequisite.packet_filter()
    with Sites(uxfrm, XDP, 1) as sites:
        sites.start(left_by=XDP)
        sites.ping(4)
        there, back = sites.numbered()
        with there, back:
            for gateway in (sites.here, sites.there) * UPGRADES:
                there.wait(200)
                back.wait(200)
                gateway.upgrade()
        assert_whole(there, back)
        assert_nothing_dropped(sites.here, sites.there)
        assert "xdp" in sites.right.ip("link show wire0"), "the program of the last process"
        sites.there.stop()
        assert "xdp" not in sites.right.ip("link show wire0")


def test_numbers_go_on_and_no_iv_is_used_twice(sites):
    sites.start()
    sites.ping(4)
    sent = esp_to(sites, OUTER[1])
    there, back = sites.numbered()
    with there, back:
        for gateway in (sites.here, sites.there) * 2:
            there.wait(100)
            sent += esp_to(sites, OUTER[1])  # before the test's own socket is full
            gateway.upgrade()
        there.wait(100)
    sent += esp_to(sites, OUTER[1])
    assert_whole(there, back)
    numbers = [struct.unpack("!I", frame[38:42])[0] for frame in sent]
    ivs = [frame[42:50] for frame in sent]
    assert len(sent) >= there.sent
    assert sorted(numbers) == list(range(1, len(sent) + 1)), "none is missing and none is there twice"
    assert len(set(ivs)) == len(ivs)


def esp_to(sites, address):
    return [frame for frame in frames_to(sites.between.seen(), address) if wire.protocol(frame) == "esp"]


def other_devices(gateway):
    gateway.write(gateway.batch.read_text().splitlines(), more=INLINE.format(PACKET).replace("lan0", "eth9") + CONTROLLED)
    return None, "network devices"


@pytest.mark.parametrize("by", [PACKET, XDP])
@pytest.mark.parametrize("fault", [other_program, spoilt_configuration, other_devices])
def test_where_another_can_t_take_over_the_gateway_runs_on(fault, by, uxfrm):
    prerequisite.packet_filter()
    with Sites(uxfrm, by) as sites:
        sites.start()
        sites.ping(4)
        there, back = sites.numbered()
        gateway = sites.there
        said = gateway.batch.read_text().splitlines()
        with there, back:
            there.wait(100)
            before = gateway.pid
            binary, why = fault(gateway)
            assert why in gateway.upgrade(binary, check=False)
            assert gateway.pid == before
            there.wait(100)
            gateway.write(said, more=INLINE.format(by) + CONTROLLED)
            assert "has taken over" in gateway.upgrade()
            there.wait(100)
        assert_whole(there, back)
        wire.assert_only("esp", sites.between.seen())
        gateway.stop()


@pytest.mark.parametrize("by", [PACKET, XDP])
def test_where_it_ends_after_it_was_told_all_the_gateway_runs_on(by, uxfrm):
    """It has the sockets, and where there are rings it has mapped them, when it comes to
    nothing."""
    prerequisite.packet_filter()
    with Sites(uxfrm, by) as sites:
        sites.start()
        sites.ping(4)
        there, back = sites.numbered()
        gateway = sites.there
        with there, back:
            there.wait(100)
            before = gateway.pid
            assert "the gateway runs on as it was" in upgrade_that_dies(gateway, by)
            assert gateway.pid == before
            there.wait(100)
            back.wait(100)
            assert "has taken over" in gateway.upgrade()
            there.wait(100)
            assert "the gateway runs on as it was" in upgrade_that_dies(gateway, by)
        assert_whole(there, back)
        wire.assert_only("esp", sites.between.seen())
        # It follows the host's addresses still.
        sites.right.ip("addr add 10.9.0.22/24 dev wire0")
        until(lambda: " 0% packet loss" in sites.left.run("ping", "-c1", "-W1", "10.9.0.22", check=False), gateway.log)
        sites.ping(4)
        gateway.stop()


def upgrade_that_dies(gateway, by):
    """What the upgrade says whose successor is killed while it waits for a predecessor that is
    stopped."""
    own, taken = gateway.pid, gateway.log().count("has taken over")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        said = threads.submit(gateway.upgrade, check=False)
        until(lambda: len(gateway._children()) == 2, gateway.log)
        successor = next(int(pid) for pid in gateway._children() if int(pid) != own)
        until(lambda: is_told(successor, by), gateway.log)
        os.kill(own, signal.SIGSTOP)
        try:
            assert gateway.log().count("has taken over") == taken, "it is the gateway by now"
            os.kill(successor, signal.SIGKILL)
        finally:
            os.kill(own, signal.SIGCONT)
        return said.result()


def is_told(pid, by):
    """Whether a successor has its predecessor's descriptors, and the rings where there are any."""
    process = pathlib.Path(f"/proc/{pid}")
    if by == XDP:
        return "uxfrm-frames" in (process / "maps").read_text()
    return len(list((process / "fd").iterdir())) > 15


def until(condition, why):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.001)


def test_a_port_of_esp_in_udp_may_come(uxfrm):
    """The program at the device takes it from then on, and the host's stack is kept from it."""
    prerequisite.packet_filter()
    with Sites(uxfrm, XDP) as sites:
        sites.start(left_by=XDP)
        for gateway, is_left in ((sites.here, True), (sites.there, False)):
            config = gateway.directory / "config.toml"
            config.write_text(config.read_text().replace("udp_ports = [4500]", "udp_ports = [4500, 4501]"))
            assert "has taken over" in gateway.upgrade()
            gateway.ip("xfrm policy flush")
            gateway.ip("xfrm state flush")
            for line in lines(is_left, extra="encap espinudp 4501 4501 0.0.0.0"):
                gateway.ip(line)
        sites.ping(4)
        beyond = sites.wire(sites.right, "wire0")
        there, back = sites.numbered()
        with there, back:
            there.wait(200)
            back.wait(200)
        assert not [frame for _, frame in beyond.seen() if frame[34:38] == struct.pack("!HH", 4501, 4501)], "it comes by the rings"
        assert_whole(there, back)
        assert_nothing_dropped(sites.here, sites.there)


class AfXdpGateways(topology.PlacedGateways):
    """Host mode with `af_xdp` at the right gateway, and at the left one if asked for."""

    def _build(self, uxfrm, workers=1):
        super()._build()
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)
        for gateway in self.gateways:
            gateway._workers = workers

    def start(self, here=""):
        self.here.start(IN_HOST_MODE.lines(HERE, THERE), wire=here, more=CONTROLLED)
        self.there.start(IN_HOST_MODE.lines(THERE, HERE), wire=EXPRESS, more=CONTROLLED)


@pytest.mark.parametrize("here", ["", EXPRESS], ids=["one", "both"])
@pytest.mark.parametrize("workers", [1, 2])
def test_host_mode_by_rings(workers, here, uxfrm):
    with AfXdpGateways(uxfrm, workers) as both:
        both.start(here)
        there = Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4])
        back = Numbered(both.right, both.left, THERE.inner[4], HERE.inner[4])
        with there, back:
            for gateway in (both.here, both.there) * UPGRADES:
                there.wait(200)
                back.wait(200)
                assert "has taken over" in gateway.upgrade()
                # Any moment without the program would show it here.
                assert "xdp" in both.right.ip("link show wire0")
        assert_whole(there, back)
        assert_nothing_dropped(both.here, both.there)
        both.here.stop()
        both.there.stop()
        assert "xdp" not in both.right.ip("link show wire0")
