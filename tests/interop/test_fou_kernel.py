"""FOU and GUE with a Linux kernel that sends them: tunnels in UDP both ways, also within ESP.

The kernel is Debian's for clouds, in QEMU (topology.UxfrmAndQemu), booted once for all cases.
User-Mode Linux, which boots faster, can't send FOU; what it can is in test_tunnel.py.
"""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

import echo
import wire
from association import GCM_128, Association
from gateway import Gateway
from namespace import ping_command
from test_tunnel import INSIDE, KINDS, PORT, PROTOCOL, Case, drops, start
from topology import HERE, THERE

TCP_BYTES = 128 * 1024
CASES = [Case(kind, inner, encap) for kind, inner in KINDS for encap in ("fou", "fou-csum", "gue", "gue-csum")]
WITH_FIELDS = [Case("gre", 4, "fou-csum", "key 7 seq csum"), Case("gre", 6, "gue", "key 7")]
# Remote checksum offload, both ways, comes with a checksum of its own.
REMOTE_CHECKSUM = [Case(kind, 4, "gue-csum", "encap-remcsum") for kind in ("ipip", "gre")]
WITHIN_ESP = [Case("ipip", 4, "fou"), Case("gre", 4, "gue-csum"), Case("sit", 6, "fou-csum"), Case("ip6tnl", 4, "fou-csum")]


@pytest.fixture
def gateway(uxfrm, qemu_network):
    made = Gateway(uxfrm, qemu_network.here)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES + WITH_FIELDS + REMOTE_CHECKSUM, ids=str)
def test_ping_and_tcp_both_ways(case, gateway, qemu_network):
    start(gateway, case.lines(HERE, THERE))
    with joined(case, gateway, qemu_network):
        ping_both_ways(case, qemu_network)
        for outgoing, frame in qemu_network.between.seen():
            if wire.protocol(frame) != "housekeeping":
                assert_in_udp(case, frame, outgoing)
        tcp_both_ways(case, qemu_network)
        if not case.encap.endswith("csum"):
            at = 14 + (20 if case.outer == 4 else 40) + 6
            frames = [frame for _, frame in qemu_network.between.seen() if wire.protocol(frame) == case.on_the_wire]
            assert {frame[at : at + 2] for frame in frames} == {b"\0\0"}
    assert drops(gateway) == {}


@pytest.mark.parametrize("case", WITHIN_ESP, ids=str)
def test_within_transport_mode_esp(case, gateway, qemu_network):
    """A policy between the ends applies to the tunnel, too: on the wire is ESP and nothing else."""
    association = Association(GCM_128, "transport", case.outer, case.outer)
    start(gateway, case.lines(HERE, THERE), association.lines(HERE, THERE))
    qemu_network.linux.xfrm(association.lines(THERE, HERE))
    with joined(case, gateway, qemu_network):
        ping_both_ways(case, qemu_network)
        tcp_both_ways(case, qemu_network)
        wire.assert_only("esp", qemu_network.between.seen())
    assert drops(gateway) == {}


class joined:
    """The kernel's end of a case's tunnel, for a while."""

    def __init__(self, case, gateway, network):
        self.case, self.gateway, self.network = case, gateway, network

    def __enter__(self):
        here, there, length = INSIDE[self.case.inner]
        port, tunnel = (f"ip {line}" for line in self.case.lines(THERE, HERE))
        self.network.here.address("tun1", f"{here}/{length}")
        self.network.linux.run(
            f"""set -e
            {port}
            {tunnel}
            ip link set tun1 addrgenmode none
            ip addr add {there}/{length} dev tun1{" nodad" if self.case.inner == 6 else ""}
            ip link set tun1 up"""
        )
        self.network.between.seen()

    def __exit__(self, kind, failure, _):
        linux = self.network.linux
        if failure is not None:
            told = linux.run("ip -s -d link show tun1; cat /proc/net/snmp; ip fou show", check=False)
            failure.add_note(f"uxfrm: {drops(self.gateway)} {self.gateway.statistics()}\n{self.gateway.log()}\nLinux: {told}")
        family = "-6 " if self.case.outer == 6 else ""
        linux.run(f"ip link del tun1; ip {family}fou del port {PORT}; ip xfrm state flush; ip xfrm policy flush", check=False)


def ping_both_ways(case, network):
    here, there, _ = INSIDE[case.inner]
    network.here.ping(here, there)
    network.linux.run(ping_command(there, here, echo.MARKER))


def tcp_both_ways(case, network):
    here, there, _ = INSIDE[case.inner]
    with network.here.entered():
        echo.transfer(here, there, TCP_BYTES)
    network.linux.transfer(there, here, TCP_BYTES)


def assert_in_udp(case, frame, ours):
    """A frame as scapy reads it: addresses, ports, checksum, and behind UDP what the case says."""
    outer = IP(frame[14:]) if case.outer == 4 else IPv6(frame[14:])
    assert UDP in outer, outer.summary()
    datagram = outer[UDP]
    ends = (HERE, THERE) if ours else (THERE, HERE)
    assert (outer.src, outer.dst) == tuple(side.outer[case.outer] for side in ends)
    assert datagram.dport == PORT and datagram.sport != 0
    body = bytes(datagram.payload)
    if case.encap.startswith("gue"):
        length, protocol = 4 + 4 * (body[0] & 31), body[1]
        assert body[0] >> 5 == 0 and protocol == PROTOCOL[case.kind, case.inner], body[:4].hex()
        body = body[length:]
    if case.kind in ("gre", "ip6gre"):
        assert body[2:4] == (b"\x86\xdd" if case.inner == 6 else b"\x08\x00"), body[:4].hex()
    else:
        assert body[0] >> 4 == case.inner, body[:1].hex()
    if not case.encap.endswith("csum"):
        assert datagram.chksum == 0
    elif ours:  # Linux leaves it to its device.
        said = datagram.chksum
        del datagram.chksum
        assert type(outer)(bytes(outer))[UDP].chksum == said != 0
