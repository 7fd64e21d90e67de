"""Rekeying between uxfrm and Linux without losing a packet.

Both generations of SAs are there at both ends before Linux removes its old outbound one (make
before break). Meanwhile datagrams pass in both directions, and each must be answered. For the
network see topology.UxfrmAndLinux.
"""

import dataclasses

import pytest

import wire
from association import CBC_SHA256, GCM_128, Association
from gateway import Gateway
from probes import Probes
from topology import HERE, THERE

PROBES = 100  # before and after new keys


@pytest.mark.parametrize("transform", [GCM_128, CBC_SHA256], ids=lambda transform: transform.name)
def test_no_packet_is_lost_when_linux_rekeys(transform, uxfrm, linux_network):
    old = Association(transform, "tunnel", 4, 4)
    new = dataclasses.replace(old, generation=1)
    here, there = old.endpoints(HERE), old.endpoints(THERE)
    gateway = Gateway(uxfrm, linux_network.here)
    try:
        gateway.start(old.lines(HERE, THERE) + new.states(HERE, THERE))
        linux_network.linux.xfrm(old.lines(THERE, HERE) + [new.state(HERE, THERE)])
        linux_network.here.ping(here, there, count=1)
        linux_network.between.seen()
        probes = Probes(linux_network.here, here, there)
        probes.wait_for(PROBES)
        rekey_towards_us(linux_network.linux, old, new)
        probes.wait_for(PROBES)
        lost = probes.lost()
        assert not lost, f"{len(lost)} of {probes.sent} unanswered: {lost[:10]}\nuxfrm said:\n{gateway.log()}"
        frames = linux_network.between.seen()
        wire.assert_only("esp", frames)
        assert {old.spi_of(HERE), new.spi_of(HERE)} == spis_received(frames), "Linux did not change to the new SA"
        gateway.stop()
    finally:
        gateway.close()


def rekey_towards_us(linux, old, new):
    """Linux's outbound SA: the new one is added, and only then is the old one deleted."""
    gone = f"xfrm state delete src {THERE.outer[4]} dst {HERE.outer[4]} proto esp spi {old.spi_of(HERE)}"
    linux.run(f"ip {new.state(THERE, HERE)} && ip {gone}".replace("(", "\\(").replace(")", "\\)"))


def spis_received(frames):
    """The SPIs of the IPv4 ESP packets that came in."""
    return {
        hex(int.from_bytes(frame[34:38], "big"))
        for outgoing, frame in frames
        if not outgoing and wire.protocol(frame) == "esp"
    }
