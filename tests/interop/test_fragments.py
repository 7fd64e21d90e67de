"""Datagrams that hosts cut before the TUN, through policies for one port and in transport mode.

The two namespaces reach each other without uxfrm too, so that what passes by a policy is seen on
the wire.
"""

import contextlib
import socket

import pytest

import echo
import patience
import wire
from association import GCM_128, Association
from namespace import received
from test_control import Controlled
from topology import HERE, THERE

SIZES = [100, 1390, 1470, 3000, 9000, 60_000]
TRIES = 100


@pytest.fixture
def network(uxfrm):
    with Controlled(uxfrm) as made:
        yield made


def with_port(line, direction, port):
    """A policy's line for datagrams to a port alone: from it, on the way back."""
    side = "dport" if direction == "there" else "sport"
    return line.replace(" dir ", f" proto udp {side} {port} dir ")


def protect_port(network, association, port):
    """Only datagrams to `port` of the right side, and their answers, are protected."""
    network.add(association.states(HERE, THERE))
    network.add(association.states(THERE, HERE), network.right)
    out, back = association.policies(HERE, THERE)
    network.add([with_port(out, "there", port), with_port(back, "back", port)])
    out, back = association.policies(THERE, HERE)
    network.add([with_port(out, "back", port), with_port(back, "there", port)], network.right)


@contextlib.contextmanager
def ends(network, association, port):
    """A sender at the left side and a receiver at the right one."""
    family = socket.AF_INET if association.inner == 4 else socket.AF_INET6
    with network.left.entered():
        sender = socket.socket(family, socket.SOCK_DGRAM)
    with network.right.entered():
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    with sender, receiver:
        sender.bind((association.endpoints(HERE), 0))
        receiver.bind((association.endpoints(THERE), port))
        receiver.settimeout(patience.SECONDS)
        yield sender, receiver


CASES = [
    Association(GCM_128, mode, family, family, extra)
    for mode in ("tunnel", "transport")
    for family in (4, 6)
    for extra in ("", "encap espinudp 4500 4500 0.0.0.0" if family == 4 else "encap espinudp 4500 4500 ::")
]


def name(association):
    return f"{association}{'-udp' if association.extra else ''}"


@pytest.mark.parametrize("association", CASES, ids=name)
def test_datagrams_of_any_length_go_by_the_policy_for_their_port(association, network):
    protect_port(network, association, 9000)
    with ends(network, association, 9000) as (sender, receiver):
        network.between.seen()
        for size in SIZES:
            message = echo.payload(size)
            # The first one of a size may only teach the host the path's MTU.
            for _ in range(TRIES):
                sender.sendto(message, (association.endpoints(THERE), 9000))
                with contextlib.suppress(TimeoutError):
                    receiver.settimeout(0.5)
                    if receiver.recv(65536) == message:
                        break
            else:
                pytest.fail(f"{size} bytes don't arrive: {network.here.stat()} {network.there.stat()}")
        wire.assert_no_plaintext(network.between.seen())
    with ends(network, association, 9001) as (sender, receiver):
        for size in (100, 3000):
            sender.sendto(echo.payload(size), (association.endpoints(THERE), 9001))
            assert receiver.recv(65536) == echo.payload(size)
        with pytest.raises(AssertionError, match="in the clear"):
            wire.assert_no_plaintext(network.between.seen())
    network.here.stop()
    network.there.stop()


@pytest.mark.parametrize("family", [4, 6])
def test_long_pings_pass_in_transport_mode(family, network):
    association = Association(GCM_128, "transport", family, family)
    network.protect(association)
    network.between.seen()
    for size in (1400, 2000, 4000):
        command = ["ping", "-c", "3", "-i", "0.2", "-w", str(patience.SECONDS), "-s", str(size), "-p", echo.MARKER.hex()[:32]]
        # Until three are answered: the first one may only teach the host the path's MTU.
        said = network.left.run(*command, THERE.outer[family], check=False)
        assert received(said) >= 3, (size, said, network.here.stat(), network.there.stat())
    wire.assert_no_plaintext(network.between.seen())
    network.here.stop()
    network.there.stop()


def test_a_policy_that_blocks_a_port_blocks_its_fragments(network):
    ends_of = f"src {HERE.inner[4]} dst {THERE.inner[4]}"
    network.ip(f"xfrm policy add {ends_of} proto udp dport 9000 dir out action block")
    with ends(network, Association(GCM_128, "tunnel", 4, 4), 9000) as (sender, receiver):
        network.between.seen()
        sender.sendto(echo.payload(5000), (THERE.inner[4], 9000))
        receiver.settimeout(0.5)
        with pytest.raises(TimeoutError):
            receiver.recv(65536)
    wire.assert_no_plaintext(network.between.seen())
    assert network.here.statistics() == {"XfrmOutPolBlock": 1}
    network.here.stop()
