"""With more policies than there are rules by source the mark leads all: nothing protected leaves
plain or is lost."""

import contextlib
import socket

import pytest

import echo
import prerequisite
import wire
from routing import NEIGHBOUR, SOCKETS, bound, datagrams, unbound
from test_guard_boot import HOST, Machine
from topology import HERE, THERE

LONG = 1300


@pytest.fixture
def machine(uxfrm):
    prerequisite.packet_filter()
    with Machine(uxfrm) as made:
        yield made


def others(count):
    """Of tunnels to sites that nobody sends to: no two are alike but for their shape."""
    return [("10.1.0.0/16", f"10.{100 + (number >> 8)}.{number & 255}.0/24", "", number % 3 > 0) for number in range(count)]


@pytest.mark.parametrize("count", [0, 300, 3000])
def test_each_way_leads_to_uxfrm_beside_many_policies(machine, count):
    """By a source hint of the host's route, bound, connected, raw, forwarded with the host's
    source and to a group."""
    mine = [("10.1.0.0/16", "10.2.0.0/16", "", True), ("0.0.0.0/0", "239.0.0.0/8", "", True), ("0.0.0.0/0", "10.3.0.0/16", "", True)]
    machine.left.ip(f"route replace 10.2.0.0/16 via {THERE.outer[4]} src {HERE.inner[4]}")
    machine.start(4, [*others(count), *mine])
    assert ("\n189:" in machine.left.ip("rule")) == (count < 256)
    for kind in SOCKETS:
        with machine.left.entered():
            kind(4, THERE.inner[4], HERE.inner[4])
        assert set(machine.kinds()) == {"esp"}, kind.__name__
        machine.between.seen()
    with machine.left.entered(), datagrams(4) as made:
        made.bind((HERE.inner[4], 0))
        made.sendto(bytes(LONG), (THERE.inner[4], 9))
    assert machine.kinds() == ["esp"], "a long one"
    with machine.left.entered():
        unbound(4, "10.3.0.1", None)
        assert machine.kinds() == ["esp"], "without a hint"
        unbound(4, "239.1.1.1", None)
        assert machine.kinds() == ["esp"], "a group"
        unbound(4, NEIGHBOUR[4], None)
        assert machine.kinds() == ["plain"]
    with machine.host.entered():
        unbound(4, THERE.inner[4], None)
    assert machine.kinds() == ["esp"], "forwarded"
    with machine.host.entered():
        for _ in range(3):
            with contextlib.suppress(OSError):
                datagram(HOST[4], THERE.inner[4], LONG)
    assert set(machine.kinds(3)) == {"esp"}, "forwarded, and long"


def datagram(source, destination, length):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind((source, 0))
        made.sendto(bytes(length), (destination, 9))


@pytest.mark.parametrize("count", [0, 300])
def test_a_bound_socket_to_a_group_is_refused_and_told(machine, count):
    """The kernel asks no route for it, so no mark leads it: it stays in, and its sender hears
    why."""
    machine.start(4, [*others(count), ("0.0.0.0/0", "239.0.0.0/8", "", True)])
    with machine.left.entered():
        with pytest.raises(PermissionError):
            bound(4, "239.1.1.1", HERE.outer[4])
        unbound(4, NEIGHBOUR[4], None)
    frames = machine.sent(1)
    assert len([frame for frame in frames if echo.MARKER in frame]) == 1
    assert not any(wire.protocol(frame) == "esp" for frame in frames)
