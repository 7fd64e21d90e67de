"""`[wire] queue_delay`: a sender of TCP is told to send less while packets wait in a gateway's
queues, and all that it sends arrives.

A microsecond is over whenever TCP sends as fast as it can, on a machine of any speed; and all
arrives, as two packets are no queue however long they wait.
"""

import pytest

import echo
import topology
from association import GCM_128, Association
from topology import HERE, THERE

TCP_BYTES = 8 << 20
SHORT = "queue_delay = 1"
STANDS = {"in_queue_stands", "out_queue_stands"}


@pytest.fixture
def network(uxfrm):
    with topology.PlacedGateways() as made:
        made.here, made.there = made.gateway(uxfrm, made.left), made.gateway(uxfrm, made.right)
        yield made


def transfer(network, wire, ecn, encap):
    """One stream from left to right and back: what the gateways told senders by a loss, and how
    many segments came back as marked."""
    association = Association(GCM_128, "tunnel", 4, 4, extra=encap)
    network.here.start(association.lines(HERE, THERE), wire=wire)
    network.there.start(association.lines(THERE, HERE), wire=wire)
    for namespace in (network.left, network.right):
        namespace.run("sysctl", "-qw", f"net.ipv4.tcp_ecn={ecn}")
    before = marked(network.left)
    with network.left.entered():
        # Not every host's choice heeds losses and marks; Reno does, and every kernel has it and
        # lets everybody choose it.
        echo.transfer(HERE.inner[4], THERE.inner[4], TCP_BYTES, congestion="reno")
    told = [sum(reasons(gateway).get(name, 0) for name in STANDS) for gateway in (network.here, network.there)]
    network.here.stop()
    network.there.stop()
    return sum(told), marked(network.left) - before


def reasons(gateway):
    lines = gateway.namespace.run(str(gateway._binary), "stat", "--reasons").splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def marked(namespace):
    """Segments that a receiver said to have come with a mark (`TcpExtTCPDeliveredCE`)."""
    names, counts = [line.split() for line in namespace.run("cat", "/proc/net/netstat").splitlines() if line.startswith("TcpExt:")]
    return int(counts[names.index("TCPDeliveredCE")])


@pytest.mark.parametrize("encap", ["", "encap espinudp 4500 4500 0.0.0.0"], ids=["esp", "udp"])
def test_a_sender_loses_segments_or_sees_marks(network, encap):
    told, marks = transfer(network, SHORT, 0, encap)
    assert told > 0 and marks == 0
    told, marks = transfer(network, SHORT, 1, encap)
    assert told == 0 and marks > 0


def test_nobody_is_told_unless_it_is_asked_for(network):
    assert transfer(network, "", 1, "") == (0, 0)
