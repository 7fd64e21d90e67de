"""A device beside inline mode, with a real Linux kernel as the other gateway: the picture is
test_inline_linux_peer's."""

import contextlib
import socket
import struct
import time

import pytest

import patience
import prerequisite
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_inline import HOSTS, InlineSites, lines
from test_inline import INLINE as INLINE_SITES
from test_inline import PACKET as PACKET_SOCKETS
from test_inline_linux_peer import BEHIND, INLINE, InlineAndLinux
from test_offload import CRYPTO, DEVICE, IN_UDP, PACKET, TCP_BYTES, WINDOW, assert_accounts, client, device, offloaded
from test_offload_contract import SOFTWARE
from topology import THERE
from wire import SO_RCVBUFFORCE

CHUNK = 3000  # more than a device's ring (1024), and than two of them
BURST = 9000
DELAY_MICROSECONDS = 500
PORT = 7118
WAIT_SECONDS = patience.SECONDS


@pytest.fixture(scope="module")
def inline_network():
    prerequisite.root()
    prerequisite.packet_filter()
    prerequisite.linux_peer()
    with InlineAndLinux() as made:
        yield made


@pytest.mark.parametrize(
    "kind, extra", [(PACKET, WINDOW), (CRYPTO, WINDOW), (PACKET, f"{WINDOW} {IN_UDP}")], ids=["packet", "crypto", "packet-udp"]
)
def test_a_device_stands_beside_inline_mode(kind, extra, uxfrm, inline_network):
    network = inline_network
    association = Association(GCM_128, "tunnel", 4, 4, extra, reqid=8)
    lines = offloaded(kind, association, BEHIND, THERE)
    forwarded = [line.replace(" dir in ", " dir fwd ") for line in lines if line.startswith("xfrm policy") and " dir in " in line]
    gateway = Gateway(uxfrm, network.here)
    try:
        gateway.start(lines + forwarded, more=INLINE + DEVICE.format(profile="unlimited"))
        network.linux.xfrm(association.lines(THERE, BEHIND))
        network.assert_protected(association)
        found = device(uxfrm, network.here, part="states")
        assert_accounts(found)
        assert min(state["packets"] for state in found["states"]) > 2 * TCP_BYTES / 65536, found
        gateway.stop()
    except Exception as failure:
        shown = client(uxfrm, network.here, "dev", "show nic0 states", check=False)[1]
        failure.add_note(f"Linux counted {network.linux.statistics()}\n{gateway.statistics()}\n{shown}\n{gateway.log()}")
        raise
    finally:
        gateway.close()


class Slow(InlineSites):
    """Two gateways in inline mode; the states of both are on devices that complete late, so that
    their rings run full, or are software's."""

    def _build(self, uxfrm, kind):
        super()._build(uxfrm)
        for gateway, is_left in ((self.here, True), (self.there, False)):
            gateway.start(more=INLINE_SITES.format(PACKET_SOCKETS) + CONTROLLED)
            if kind == PACKET:
                client(uxfrm, gateway.namespace, "dev", "add nic0 profile unlimited")
                client(uxfrm, gateway.namespace, "dev", f"set nic0 fault delay {DELAY_MICROSECONDS}")
            for line in lines(is_left, extra="replay-window 1024"):
                line = on_device(line, is_left) if kind == PACKET else line
                client(uxfrm, gateway.namespace, "xfrm", line.removeprefix("xfrm "))


def on_device(line, is_left):
    if line.startswith("xfrm state"):
        way = "out" if ("src 10.9.0.1" in line) == is_left else "in"
        return f"{line} offload packet dev nic0 dir {way}"
    return line if " dir fwd " in line else line.replace(" tmpl ", " offload packet dev nic0 tmpl ", 1)


def dropped(uxfrm, gateway):
    counts = gateway.namespace.run(str(uxfrm), "stat", "--reasons").splitlines()
    return [count.split() for count in counts if not count.endswith("\t0")]


@pytest.mark.parametrize("kind", [SOFTWARE, PACKET], ids=["software", "packet"])
def test_a_burst_waits_for_a_device_that_is_slow(kind, uxfrm):
    """The first packets of new states, numbered: none is lost, though a device has no room for
    them for a while, at either end."""
    prerequisite.packet_filter()
    source, destination = HOSTS[4]
    with Slow(uxfrm, kind) as network, contextlib.ExitStack() as stack:
        ends = []
        for namespace in (network.left_host, network.right_host):
            with namespace.entered():
                ends.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
        sender, receiver = ends
        network.left_host.ping(source, destination)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        receiver.bind((destination, PORT))
        receiver.settimeout(1)
        came, deadline = set(), time.monotonic() + WAIT_SECONDS
        for number in range(BURST):
            sender.sendto(struct.pack("!I", number), (destination, PORT))
            while number % CHUNK == CHUNK - 1 and len(came) <= number and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    came.add(receiver.recv(64))
        assert len(came) == BURST, [dropped(uxfrm, gateway) for gateway in network.gateways]
        for gateway in network.gateways if kind == PACKET else ():
            assert_accounts(device(uxfrm, gateway.namespace))
