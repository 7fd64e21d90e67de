"""An idle outbound state in UDP keeps the NAT in front of it open: datagrams of the byte 0xff,
from its ports to its peer."""

import time

import pytest

import patience
import prerequisite
import topology
from association import GCM_128, Association
from gateway import CONTROLLED
from topology import HERE, THERE

try:
    from scapy.layers.inet import UDP
    from scapy.layers.l2 import Ether
except ImportError:
    prerequisite.not_run("needs scapy: apt-get install python3-scapy python3-cryptography")

WAIT_SECONDS = patience.SECONDS
SOURCE_PORT, DESTINATION_PORT = 4500, 1024


@pytest.fixture
def network(uxfrm):
    with topology.UxfrmAndWire() as made:
        yield made


def state(family, spi):
    unspecified = {4: "0.0.0.0", 6: "::"}[family]
    extra = f"dir out encap espinudp {SOURCE_PORT} {DESTINATION_PORT} {unspecified} nat-keepalive 1"
    return Association(GCM_128, "tunnel", family, family, extra=extra, generation=spi).state(HERE, THERE)


def keepalives(network, family, count):
    """The next so many datagrams of one byte to the peer."""
    found, deadline = [], time.monotonic() + WAIT_SECONDS
    while len(found) < count and (frame := network.far.next_frame(deadline)):
        packet = Ether(frame)
        if UDP in packet and packet.src == network.mac and packet.payload.dst == THERE.outer[family] and packet[UDP].len == 9:
            found.append(packet)
    assert len(found) == count, f"{len(found)} keepalives over IPv{family} in {WAIT_SECONDS} s"
    return found


@pytest.mark.parametrize("family", (4, 6))
def test_an_idle_state_sends_one_byte_again_and_again(uxfrm, network, family):
    here = network.gateway(uxfrm, network.here)
    here.start([state(family, 0)], more=CONTROLLED)
    for packet in keepalives(network, family, 3):
        udp = packet[UDP]
        assert (udp.sport, udp.dport, bytes(udp.payload)[:1]) == (SOURCE_PORT, DESTINATION_PORT, b"\xff")
        assert packet.payload.src == HERE.outer[family]
        if family == 6:
            sent = udp.chksum
            del udp.chksum
            assert Ether(bytes(packet))[UDP].chksum == sent
    here.stop()


def test_programs_add_list_and_are_refused_one(uxfrm, network):
    here = network.gateway(uxfrm, network.here)
    here.start(more=CONTROLLED)

    def xfrm(words):
        return network.here.run(str(uxfrm), *words.split())

    xfrm(state(4, 0))
    keepalives(network, 4, 2)
    assert "\tnat-keepalive 1\n" in xfrm("xfrm state list")
    with pytest.raises(RuntimeError, match="NAT keepalive is only supported for outbound SAs"):
        xfrm(state(4, 1).replace("dir out", "replay-window 32 dir in"))
    here.stop()
