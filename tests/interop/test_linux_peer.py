"""uxfrm against a real Linux kernel: ping and TCP in both directions, nothing but ESP on the wire.

For the picture of the network see topology.UxfrmAndLinux. Each case starts `uxfrm run` anew with
its states and policies, gives Linux the mirror image, and moves traffic both ways while the wire
is watched.
"""

import dataclasses

import pytest

import echo
import wire
from association import CBC_SHA1, CBC_SHA256, CHACHA20_POLY1305, GCM_128, GCM_256, Association
from gateway import Gateway
from namespace import UNANSWERED_SECONDS, ping_command
from topology import HERE, THERE

TCP_BYTES = 256 * 1024
LARGE_PING = 5000

TRANSFORMS = [GCM_128, GCM_256, CHACHA20_POLY1305, CBC_SHA1, CBC_SHA256]
MATRIX = [
    Association(transform, mode, family, family)
    for mode in ("transport", "tunnel")
    for transform in TRANSFORMS
    for family in (4, 6)
]
MIXED_FAMILIES = [
    Association(transform, "tunnel", inner, outer)
    for transform in (GCM_128, CBC_SHA256)
    for inner, outer in ((4, 6), (6, 4))
]
WINDOW_128 = "replay-window 128 flag esn"
ESN = [
    Association(transform, mode, family, family, extra=WINDOW_128)
    for transform, mode, family in (
        (GCM_128, "tunnel", 4),
        (CHACHA20_POLY1305, "transport", 6),
        (CBC_SHA1, "transport", 4),
        (CBC_SHA256, "tunnel", 6),
    )
]
IN_UDP = [
    Association(transform, mode, family, 4, extra="encap espinudp 4500 4500 0.0.0.0")
    for transform, mode, family in (
        (GCM_128, "tunnel", 4),
        (GCM_128, "transport", 4),
        (CBC_SHA256, "tunnel", 4),
        (GCM_256, "tunnel", 6),
    )
]


@pytest.fixture
def gateway(uxfrm, linux_network):
    made = Gateway(uxfrm, linux_network.here)
    yield made
    made.close()


@pytest.mark.parametrize("association", MATRIX, ids=str)
def test_ping_and_tcp(association, gateway, linux_network):
    traffic_is_protected(association, "esp", gateway, linux_network)


@pytest.mark.parametrize("association", MIXED_FAMILIES, ids=str)
def test_one_family_inside_the_other(association, gateway, linux_network):
    traffic_is_protected(association, "esp", gateway, linux_network)


@pytest.mark.parametrize("association", ESN, ids=str)
def test_extended_sequence_numbers_with_a_window_of_128(association, gateway, linux_network):
    traffic_is_protected(association, "esp", gateway, linux_network)


@pytest.mark.parametrize("association", IN_UDP, ids=str)
def test_esp_in_udp(association, gateway, linux_network):
    traffic_is_protected(association, "esp-in-udp", gateway, linux_network)


def test_senders_learn_the_path_mtu(uxfrm, linux_network):
    """A TUN as wide as the wire: full TCP segments do not fit with ESP around them, and uxfrm
    has to say so."""
    gateway = Gateway(uxfrm, linux_network.here, mtu=1500)
    try:
        traffic_is_protected(Association(GCM_128, "tunnel", 4, 4), "esp", gateway, linux_network)
    finally:
        gateway.close()


@pytest.mark.parametrize("family", [4, 6])
def test_datagrams_larger_than_the_mtu(family, gateway, linux_network):
    """Linux fragments its ESP packets; towards Linux each fragment that the TUN hands over goes
    through the tunnel."""
    association = Association(GCM_128, "tunnel", family, family)
    gateway.start(association.lines(HERE, THERE))
    linux_network.linux.xfrm(association.lines(THERE, HERE))
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    linux_network.between.seen()
    linux_network.here.ping(here, there, size=LARGE_PING)
    linux_network.linux.run(ping_command(there, here, echo.MARKER, size=LARGE_PING))
    wire.assert_only("esp", linux_network.between.seen())
    gateway.stop()


def test_linux_drops_what_was_tampered_with(gateway, linux_network):
    """The counter-test: with another key at the Linux end nothing passes, and Linux counts it as
    a bad ICV."""
    association = Association(GCM_128, "tunnel", 4, 4)
    other_key = dataclasses.replace(association, generation=1)
    gateway.start(association.lines(HERE, THERE))
    lines = [line.replace(other_key.spi_of(THERE), association.spi_of(THERE)) for line in other_key.lines(THERE, HERE)]
    linux_network.linux.xfrm(lines)
    before = linux_network.linux.statistics().get("XfrmInStateProtoError", 0)
    with pytest.raises(RuntimeError, match="100% packet loss"):
        linux_network.here.ping(HERE.inner[4], THERE.inner[4], count=2, seconds=UNANSWERED_SECONDS)
    assert linux_network.linux.statistics().get("XfrmInStateProtoError", 0) >= before + 2
    gateway.stop()


def traffic_is_protected(association, expected_on_wire, gateway, network):
    gateway.start(association.lines(HERE, THERE))
    network.linux.xfrm(association.lines(THERE, HERE))
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    network.between.seen()  # only what comes from here on counts
    try:
        network.here.ping(here, there)
        network.linux.run(ping_command(there, here, echo.MARKER))
        with network.here.entered():
            echo.transfer(here, there, TCP_BYTES)
        network.linux.transfer(there, here, TCP_BYTES)
    except Exception as failure:
        failure.add_note(f"Linux counted {network.linux.statistics()}\nuxfrm said:\n{gateway.log()}")
        raise
    wire.assert_only(expected_on_wire, network.between.seen())
    gateway.stop()
