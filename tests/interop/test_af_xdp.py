"""Host mode with ESP past the kernel's network stack: `af_xdp` in `[wire]`.

The left gateway sends and receives by the kernel, so that its end of the wire shows what passes;
at the right one AF_XDP hides it from everybody, which is how it is known that nothing of it went
by the kernel there.
"""

import dataclasses

import pytest

import echo
import prerequisite
import topology
import wire
from association import CBC_SHA256, GCM_128, Association
from topology import HERE, THERE

AF_XDP = 'af_xdp = "wire0"'
TCP_BYTES = 4 << 20
CASES = [
    Association(GCM_128, "tunnel", 4, 4),
    Association(GCM_128, "tunnel", 6, 6),
    Association(GCM_128, "tunnel", 4, 6),
    Association(GCM_128, "transport", 4, 4),
    Association(CBC_SHA256, "transport", 6, 6),
    Association(CBC_SHA256, "tunnel", 6, 4, extra="replay-window 128 flag esn"),
]
IN_UDP = Association(GCM_128, "tunnel", 4, 4, extra="encap espinudp 4500 4500 0.0.0.0")


class AfXdpGateways(topology.PlacedGateways):
    """Two gateways, and who sees what the right kernel does."""

    def _build(self, uxfrm):
        super()._build()
        self.here, self.there = self.gateway(uxfrm, self.left), self.gateway(uxfrm, self.right)
        self.beyond = self.wire(self.right, "wire0")

    def start(self, association, here="", there=AF_XDP):
        self.here.start(association.lines(HERE, THERE), wire=here)
        self.there.start(association.lines(THERE, HERE), wire=there)

    def talk(self, association):
        """Pings and TCP both ways."""
        ends = association.endpoints(HERE), association.endpoints(THERE)
        self.left.ping(*ends)
        self.right.ping(*reversed(ends))
        for namespace, (near, far) in ((self.left, ends), (self.right, ends[::-1])):
            with namespace.entered():
                echo.transfer(near, far, TCP_BYTES)

    def seen_beyond(self):
        return {wire.protocol(frame) for _, frame in self.beyond.seen()}


@pytest.fixture
def network(uxfrm):
    with AfXdpGateways(uxfrm) as made:
        yield made


@pytest.mark.parametrize("association", CASES, ids=str)
def test_esp_passes_unseen_by_the_kernel(association, network):
    network.start(association)
    network.talk(association)
    wire.assert_only("esp", network.between.seen())
    # The way is known by now.
    network.seen_beyond()
    network.talk(association)
    assert "esp" not in network.seen_beyond()
    wire.assert_only("esp", network.between.seen())
    network.here.stop()
    network.there.stop()


def test_both_ends_and_several_workers(uxfrm):
    """The second worker has no queue of a veth, and does with its sockets."""
    for workers in (1, 2):
        with AfXdpGateways(uxfrm) as network:
            for gateway in network.gateways:
                gateway._workers = workers
            network.start(CASES[0], here=AF_XDP)
            network.talk(CASES[0])
            network.talk(CASES[0])
            assert network.here.memory() < 64 << 10 or workers > 1


def test_all_else_is_the_kernels(network):
    """ESP in UDP, what is for the host itself, and ESP to others."""
    network.start(IN_UDP)
    network.talk(IN_UDP)
    network.left.run("ping", "-c2", "-i0.2", "-W2", THERE.outer[4])
    assert {"esp-in-udp", "ipv4 protocol 1"} <= network.seen_beyond()
    wire.assert_no_plaintext(network.between.seen())


def test_frames_are_gathered_unless_nobody_wants_it(network):
    network.start(CASES[0])
    assert "frames are gathered" in network.there.log()
    network.there.stop()
    network.there.start(CASES[0].lines(THERE, HERE), wire=f"{AF_XDP}\ngather = 0")
    assert "frames are gathered" not in network.there.log()
    network.talk(CASES[0])


def test_the_kernel_goes_on_alone(network):
    """The program goes with its process, also after a crash; without it all passes by the
    sockets."""
    network.start(CASES[0])
    assert "xdp" in network.right.ip("link show wire0")
    network.talk(CASES[0])
    network.there.kill()
    assert "xdp" not in network.right.ip("link show wire0")
    network.there.start(CASES[0].lines(THERE, HERE))
    network.talk(CASES[0])
    assert "esp" in network.seen_beyond()


def test_links_may_go_down_and_addresses_may_come(network):
    network.start(CASES[0])
    network.talk(CASES[0])
    network.right.ip("link set wire0 down")
    network.right.ip("link set wire0 up")
    network.beyond = network.wire(network.right, "wire0")
    network.right.ip(f"route add {HERE.inner[4]} via {HERE.outer[4]} src {THERE.inner[4]}")
    network.right.neighbour("wire0", network.left.mac("wire0"), HERE.outer[4])
    network.talk(CASES[0])
    # Another address of the right gateway: ESP to it is its own, by the ring once it is known.
    elsewhere = dataclasses.replace(THERE, outer={4: "10.9.0.22", 6: THERE.outer[6]}, spi=0x3000)
    network.right.ip("addr add 10.9.0.22/24 dev wire0")
    network.left.neighbour("wire0", network.right.mac("wire0"), "10.9.0.22")
    for gateway, ends in ((network.here, (HERE, elsewhere)), (network.there, (elsewhere, HERE))):
        gateway.ip("xfrm policy flush")
        gateway.ip("xfrm state flush")
        for line in dataclasses.replace(CASES[0], reqid=9).lines(*ends):
            gateway.ip(line)
    network.talk(CASES[0])
    network.seen_beyond()
    network.talk(CASES[0])
    assert "esp" not in network.seen_beyond()


def test_another_address_of_the_device_is_seen(network):
    """The rings would go on with the old one."""
    network.start(CASES[0])
    network.talk(CASES[0])
    network.right.ip("link set wire0 address 02:00:00:00:00:99")
    network.left.neighbour("wire0", "02:00:00:00:00:99", THERE.outer[4])
    network.talk(CASES[0])
    network.between.seen()
    network.seen_beyond()
    network.talk(CASES[0])
    assert "esp" in network.seen_beyond()
    senders = {frame[6:12] for _, frame in network.between.seen()}
    assert senders == {mac(network.left), bytes.fromhex("020000000099")}
    assert "passes by the kernel" in network.there.log()


def test_what_only_the_kernel_can_send_it_sends(network):
    """A route that wraps what goes by it: no bare ESP leaves."""
    network.right.run("sysctl", "-qw", "net.ipv6.conf.all.seg6_enabled=1", "net.ipv6.conf.wire0.seg6_enabled=1")
    network.start(CASES[0], here=AF_XDP, there="")
    network.talk(CASES[0])
    network.left.ip(f"route add {THERE.outer[4]}/32 encap seg6 mode encap segs {THERE.outer[6]} dev wire0")
    network.left.run("ping", "-c2", "-i0.2", "-W1", "-I", HERE.inner[4], THERE.inner[4], check=False)
    network.seen_beyond()
    network.left.run("ping", "-c3", "-i0.2", "-W1", "-I", HERE.inner[4], THERE.inner[4], check=False)
    of_left = [frame for _, frame in network.beyond.seen() if frame[6:12] == mac(network.left)]
    assert of_left
    assert "esp" not in {wire.protocol(frame) for frame in of_left}


def mac(namespace):
    return bytes.fromhex(namespace.mac("wire0").replace(":", ""))


@pytest.mark.parametrize("device, reason", [
    ("bridge0", "the driver takes no XDP program in native mode"),
    ("lo", "lo is no Ethernet device"),
    ("none0", "there is no device none0"),
])
def test_a_device_that_can_not_is_named(device, reason, network):
    network.left.ip("link add bridge0 type bridge")
    with pytest.raises(AssertionError) as refused:
        network.here.start(wire=f'af_xdp = "{device}"')
    assert "`af_xdp` in [wire]: " in str(refused.value) and reason in str(refused.value)


@pytest.fixture(scope="module")
def linux():
    prerequisite.root()
    prerequisite.linux_peer()
    with topology.UxfrmAndLinux() as made:
        yield made


@pytest.mark.parametrize("association", CASES, ids=str)
def test_a_linux_kernel_takes_the_frames(association, uxfrm, linux):
    """By a TAP device: its driver takes programs too."""
    gateway = linux.gateway(uxfrm, linux.here)
    gateway.start(association.lines(HERE, THERE), wire='af_xdp = "tap0"')
    linux.linux.xfrm(association.lines(THERE, HERE))
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    for _ in range(2):
        linux.between.seen()
        linux.here.ping(here, there)
        with linux.here.entered():
            echo.transfer(here, there, 256 << 10)
        linux.linux.transfer(there, here, 256 << 10)
    # Nothing that was sent or taken by the ring is seen here.
    assert "esp" not in {wire.protocol(frame) for _, frame in linux.between.seen()}
    gateway.stop()
    gateway.close()
