"""The guard beside very many policies: all of them are followed, and none costs a packet of another
more than a look into a set.

The network is test_guard_out's. The left gateway has 20,000 tunnels, each to a host of its own
behind the right one; a policy with a mind of its own stands before, amid and behind them.
"""

import contextlib
import socket
import time

import pytest

import echo
import patience
import prerequisite
import topology
from gateway import CONTROLLED
from test_guard_out import bound, plain, send
from topology import HERE, THERE

COUNT = 20_000
PORT = 7100
COUNT_SECONDS = patience.SECONDS
ENDS = f"src {HERE.outer[4]} dst {THERE.outer[4]}"
BACK = f"src {THERE.outer[4]} dst {HERE.outer[4]}"


def host(number):
    return f"10.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def outward(number, priority=5):
    return (
        f"xfrm policy add src 0.0.0.0/0 dst {host(number)}/32 dir out priority {priority} tmpl {ENDS} proto esp mode tunnel"
    )


def inward(number):
    return f"xfrm policy add src {host(number)}/32 dst 10.0.0.0/8 dir in priority 5 tmpl {BACK} proto esp mode tunnel"


class Guarded(topology.PlacedGateways):
    """Left and right, of which the left one guards; hosts behind the right one send from its
    device."""

    def _build(self, uxfrm):
        super()._build()
        self.here = self.gateway(uxfrm, self.left)
        self.right.ip("route add local 10.64.0.0/10 dev lo")
        self.left.run("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.wire0.rp_filter=0")

    def refuses(self, number):
        return not send(self, (bound, 4, host(number)))

    def knock(self, *numbers):
        """A plain datagram from each of these hosts."""
        for number in numbers:
            with self.right.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
                made.bind((host(number), 0))
                made.sendto(echo.MARKER, (HERE.outer[4], PORT))

    @contextlib.contextmanager
    def listening(self):
        with self.left.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.bind((HERE.outer[4], PORT))
            made.settimeout(COUNT_SECONDS)
            yield made

    def counted(self, name, at_least):
        deadline = time.monotonic() + COUNT_SECONDS
        while (now := self.here.statistics().get(name, 0)) < at_least and time.monotonic() < deadline:
            time.sleep(0.02)
        return now


@pytest.fixture
def network(uxfrm):
    prerequisite.packet_filter()
    with Guarded(uxfrm) as made:
        yield made


def some():
    return (0, 1, 255, 256, COUNT // 2, COUNT - 1)


def test_all_of_very_many_policies_are_guarded(network):
    lines = [make(number) for number in range(COUNT) for make in (outward, inward)]
    network.here.start(lines, guard="require")
    with network.listening() as heard:
        for number in some():
            assert network.refuses(number), host(number)
        assert not network.refuses(COUNT), "there is no policy for that host"
        assert plain(network) == 1
        network.knock(*some(), COUNT)
        assert heard.recvfrom(2048)[1][0] == host(COUNT)
        assert network.counted("XfrmInTmplMismatch", len(some())) == len(some())
        assert network.counted("XfrmOutError", len(some())) == len(some())
    network.here.kill()
    assert all(network.refuses(number) for number in some()), "after a crash"
    network.here.start(lines[:2], guard="require")
    assert network.refuses(0)
    assert not network.refuses(1), "the next start has the policies of then"
    network.here.stop()
    assert "uxfrm" not in network.left.run("nft", "list", "tables")


def test_policies_come_and_go_one_by_one_beside_very_many(network):
    network.here.start([outward(number) for number in range(COUNT)], guard="require", more=CONTROLLED)
    ip = network.here.ip
    more = COUNT + 7
    for _ in range(3):
        assert not network.refuses(more)
        ip(outward(more))
        assert network.refuses(more)
        ip(f"xfrm policy delete src 0.0.0.0/0 dst {host(more)}/32 dir out")
    one = f"src 0.0.0.0/0 dst {host(9)}/32 dir out"
    ip(f"xfrm policy delete {one}")
    assert not network.refuses(9)
    assert network.refuses(8) and network.refuses(10)
    # One that lets pass: before all others it decides, behind them it does not; and of the same
    # priority the older decides.
    few = f"src 0.0.0.0/0 dst {host(0)}/29 dir out"
    for priority, passes in ((1, True), (9, False)):
        ip(f"xfrm policy add {few} priority {priority} action allow")
        assert network.refuses(3) is not passes
        assert not network.refuses(9)
        ip(f"xfrm policy delete {few}")
    ip(f"xfrm policy add {few} priority 5 action allow")
    ip(f"{outward(9)}")
    assert network.refuses(3) and network.refuses(9)
    ip(f"xfrm policy update {one} priority 2 action allow")
    assert not network.refuses(9)
    ip(f"xfrm policy update src 0.0.0.0/0 dst {host(4)}/32 dir out priority 5 action allow")
    assert not network.refuses(4), "it parts those around it"
    assert network.refuses(3) and network.refuses(5)
    ip("xfrm policy flush")
    assert not any(network.refuses(number) for number in some())
    network.here.stop()
