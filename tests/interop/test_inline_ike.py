"""Inline mode beside an IKE daemon: what is IKE at port 4500 reaches it, also where a device has
joined it with ESP.

The network is test_inline's; the daemon is test_port_sharing's. Datagrams come as a device with
GRO hands them over: several of one flow in one super-packet, of which a veth makes none by
itself. A socket with `UDP_SEGMENT` at the other end does.
"""

import contextlib
import socket

import pytest

import prerequisite
from gateway import CONTROLLED
from test_inline import INLINE, OUTER, PACKET, XDP, InlineSites, lines
from test_port_sharing import ANY, Daemon, arrived, ike

UDP_SEGMENT = 103
SIZE = 240
ESP = b"\x00\x00\x77\x77" + bytes(SIZE - 4)
MESSAGE = bytes.fromhex(ike(1, 120))
WHOLE = bytes.fromhex(ike(2, SIZE - 12))


@pytest.mark.parametrize("by", [PACKET, XDP])
@pytest.mark.parametrize(
    "burst", [[MESSAGE], [ESP, MESSAGE], [ESP, WHOLE, ESP, MESSAGE], [WHOLE, ESP, MESSAGE]], ids=["alone", "behind", "among", "first"]
)
def test_ike_that_was_joined_with_esp_reaches_its_daemon(burst, by, uxfrm):
    prerequisite.packet_filter()
    with InlineSites(uxfrm) as sites, contextlib.ExitStack() as stack:
        sites.here.start(lines(True), more=INLINE.format(by) + CONTROLLED)
        daemon = Daemon(uxfrm, sites.left, ANY)
        stack.callback(daemon.close)
        with sites.right.entered():
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sender.bind((OUTER[1], 4500))
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
        sender.sendto(b"".join(burst), (OUTER[0], 4500))
        for message in (WHOLE, MESSAGE):
            if message in burst:
                assert daemon.next() == arrived("0.0.0.0", OUTER[::-1], message.hex())
        # ESP is the engine's, which has no state for it.
        assert sites.here.statistics().get("XfrmInNoStates", 0) == burst.count(ESP)
