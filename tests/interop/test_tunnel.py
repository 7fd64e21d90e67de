"""Tunnels: uxfrm at both ends for every kind and encapsulation, and uxfrm against a real Linux
kernel.

Linux 6.1 as User-Mode Linux has IPIP, GRE, SIT and ip6tnl, and receives FOU and GUE, but can't
send them. So towards Linux tunnels go in UDP and back without: receiving and sending are
independent.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import operator
import time
import types

import pytest

import echo
import topology
import wire
from association import GCM_128, Association
from gateway import Gateway
from namespace import ping_command
from topology import HERE, THERE

TCP_BYTES = 256 * 1024
PORT = 5555
OUTER = {"ipip": 4, "sit": 4, "gre": 4, "ip6tnl": 6, "ip6gre": 6}
PROTOCOL = {("ipip", 4): 4, ("sit", 6): 41, ("gre", 4): 47, ("gre", 6): 47}
PROTOCOL |= {("ip6tnl", 4): 4, ("ip6tnl", 6): 41, ("ip6gre", 4): 47, ("ip6gre", 6): 47}
RSS_KEY = bytes.fromhex("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa")
INSIDE = {4: ("172.16.9.1", "172.16.9.2", 30), 6: ("fd77::1", "fd77::2", 64)}


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    inner: int
    encap: str = "none"
    options: str = ""

    def __str__(self):
        return "-".join(filter(None, [self.kind, str(self.inner), self.encap, self.options.replace(" ", "-")]))

    @property
    def outer(self):
        return OUTER[self.kind]

    def tunnel(self, here, there, encap):
        """The tunnel as `ip link add` of uxfrm and of Linux takes it."""
        ends = f"local {here.outer[self.outer]} remote {there.outer[self.outer]}"
        limit = "encaplimit none" if self.outer == 6 else ""
        mode = "mode any" if self.kind == "ip6tnl" else ""
        return f"link add tun1 type {self.kind} {mode} {ends} {limit} {self.options} {encap}"

    def lines(self, here, there):
        encap = ""
        if self.encap != "none":
            checksum = "encap-udp6-csum" if self.outer == 6 else "encap-csum"
            framing, _, summed = self.encap.partition("-")
            encap = f"encap {framing} encap-sport auto encap-dport {PORT} {'' if summed else 'no'}{checksum}"
        return [self.port(), self.tunnel(here, there, encap)]

    def port(self):
        family = "-6 " if self.outer == 6 else ""
        what = "gue" if self.encap.startswith("gue") else f"ipproto {PROTOCOL[self.kind, self.inner]}"
        return f"{family}fou add port {PORT} {what}"

    @property
    def on_the_wire(self):
        if self.encap != "none":
            return f"ipv{self.outer} protocol {wire.UDP}"
        return f"ipv{self.outer} protocol {PROTOCOL[self.kind, self.inner]}"


KINDS = list(PROTOCOL)
BETWEEN_OURSELVES = [
    Case(kind, inner, encap) for kind, inner in KINDS for encap in ("none", "fou", "fou-csum", "gue", "gue-csum")
]
WITH_FIELDS = [Case("gre", 4, "none", "key 7 seq csum"), Case("gre", 4, "gue", "key 7 csum encap-remcsum")]
# Not `csum` both ways: Linux leaves GRE's checksum to the device, a virtual one to nobody, and a
# raw socket then sees 0.
WITHOUT_UDP = [Case(kind, inner) for kind, inner in KINDS] + [Case("gre", 4, "none", "key 7 seq ocsum")]
TO_LINUX_IN_UDP = [
    Case(kind, inner, encap)
    for kind, inner in KINDS
    if OUTER[kind] == 4
    for encap in ("fou", "fou-csum", "gue", "gue-csum")
] + [Case("gre", 4, "gue", "encap-remcsum")]


def start(gateway, lines, protection=()):
    """Starts uxfrm with tunnels, and with the states and policies that protect them."""
    batch = gateway.directory / "tunnels.batch"
    batch.write_text("".join(f"ip {line}\n" for line in lines))
    gateway.start(protection, more=f"\n[tunnel]\nbatch = [{json.dumps(str(batch))}]\n")


def drops(gateway):
    """What tunnels dropped, by reason; zeros left out."""
    lines = gateway.namespace.run(str(gateway._binary), "stat", "--reasons").splitlines()
    counts = {name: int(count) for name, count in (line.split() for line in lines)}
    return {name: count for name, count in counts.items() if count and name.startswith(("tunnel_in_", "tunnel_out_"))}


@pytest.fixture(scope="module")
def two():
    with topology.TwoGateways("wire0") as network:
        for namespace, side in ((network.left, HERE), (network.right, THERE)):
            topology.place(namespace, "wire0", side)
        yield network


@contextlib.contextmanager
def both_ends(case, uxfrm, two, protection=None):
    """A case's tunnel between two gateways, which drop nothing meanwhile; the addresses inside.
    With `protection` ESP is around it."""
    left, right = Gateway(uxfrm, two.left), Gateway(uxfrm, two.right)
    here, there, length = INSIDE[case.inner]
    try:
        for gateway, ends, inside in ((left, (HERE, THERE), here), (right, (THERE, HERE), there)):
            start(gateway, case.lines(*ends), protection.lines(*ends) if protection else ())
            gateway.namespace.address("tun1", f"{inside}/{length}")
        two.between.seen()
        try:
            yield here, there
        except Exception as failure:
            failure.add_note(f"left: {drops(left)} {left.stat()}\nright: {drops(right)} {right.stat()}\n{left.log()}{right.log()}")
            raise
        assert drops(left) == drops(right) == {}
    finally:
        left.close()
        right.close()


@pytest.mark.parametrize("case", BETWEEN_OURSELVES + WITH_FIELDS, ids=str)
def test_uxfrm_at_both_ends(case, uxfrm, two):
    with both_ends(case, uxfrm, two) as (here, there):
        two.left.ping(here, there)
        two.right.ping(there, here)
        for namespace, ends in ((two.left, (here, there)), (two.right, (there, here))):
            with namespace.entered():
                echo.transfer(*ends, TCP_BYTES)
        went(case.on_the_wire, two.between.seen(), both_ways=True)


@pytest.mark.parametrize("case", WITHOUT_UDP + TO_LINUX_IN_UDP, ids=str)
def test_linux_at_the_other_end(case, uxfrm, linux_network):
    linux = linux_network.linux
    gateway = Gateway(uxfrm, linux_network.here)
    here, there, length = INSIDE[case.inner]
    nodad = " nodad" if case.inner == 6 else ""
    options = case.options.replace("encap-remcsum", "").replace("ocsum", "icsum")
    plain = dataclasses.replace(case, options=options)
    try:
        start(gateway, case.lines(HERE, THERE))
        linux_network.here.address("tun1", f"{here}/{length}")
        linux.run(
            f"""set -e
            /run/modprobe -a fou
            ip {plain.tunnel(THERE, HERE, "")}
            ip addr add {there}/{length} dev tun1{nodad}
            ip link set tun1 up
            {"ip " + case.port() if case.encap != "none" else ""}"""
        )
        linux_network.between.seen()
        try:
            linux_network.here.ping(here, there)
            linux.run(ping_command(there, here, echo.MARKER))
            with linux_network.here.entered():
                echo.transfer(here, there, TCP_BYTES)
            linux.transfer(there, here, TCP_BYTES)
        except Exception as failure:
            failure.add_note(f"uxfrm: {drops(gateway)}\n{gateway.log()}\nLinux: {linux.run('ip -s link show tun1')}")
            raise
        assert drops(gateway) == {}
        frames = linux_network.between.seen()
        went(case.on_the_wire, frames, both_ways=case.encap == "none")
    finally:
        linux.run(f"ip link del tun1; ip fou del port {PORT}", check=False)
        gateway.close()


@pytest.mark.parametrize("case", [Case("ipip", 4, "fou"), Case("gre", 4, "gue-csum")], ids=str)
def test_each_flow_has_a_source_port_of_its_own(case, uxfrm, two):
    """Nine flows, at least eight ports, and each flow keeps its own; with checksums
    super-packets leave as bursts."""
    with both_ends(case, uxfrm, two) as (here, there):
        for _ in range(9):
            with two.left.entered():
                echo.transfer(here, there, TCP_BYTES)
        frames = sent_by(case, two)
        behind = 14 + 20 + 8 + (8 if case.kind == "gre" else 0)
        flows = {(frame[behind + 20 : behind + 22], frame[34:36]) for frame in frames}
        assert len({inner for inner, _ in flows}) == 9
        assert len(flows) == 9, "a flow changed its port"
        assert len({outer for _, outer in flows}) >= 8
        if case.encap.endswith("csum"):
            assert max(map(len, frames)) > 4000, "no burst was sent"
        else:
            assert {frame[40:42] for frame in frames} == {b"\0\0"}


def test_four_parallel_flows_spread_over_queues_and_without_udp_they_do_not(uxfrm, two):
    """By the hash that network cards choose a queue with, of addresses and UDP ports, as they
    don't look into tunnels."""
    assert queues_of([bytes.fromhex("420995bb a18e6450 0aea 06e6")], 1 << 32) == {0x51CCC178}  # Microsoft's own example
    for case, least, most in ((Case("ipip", 4), 1, 1), (Case("ipip", 4, "fou-csum"), 2, 4)):
        with both_ends(case, uxfrm, two) as (here, there), concurrent.futures.ThreadPoolExecutor(4) as flows:
            with two.left.entered():
                transfers = [flows.submit(echo.transfer, here, there, TCP_BYTES) for _ in range(4)]
            assert [transfer.exception() for transfer in transfers] == [None] * 4
            ports = slice(34, 38) if case.encap != "none" else slice(0)
            assert least <= len(queues_of((frame[26:34] + frame[ports] for frame in sent_by(case, two)), 16)) <= most


def sent_by(case, two):
    """The frames of a case's tunnel that went from left to right."""
    return [frame for outgoing, frame in two.between.seen() if outgoing and wire.protocol(frame) == case.on_the_wire]


def queues_of(inputs, queues):
    """Which of `queues` queues receive-side scaling gives packets to, of which these bytes are
    hashed, with Microsoft's key."""
    key = int.from_bytes(RSS_KEY)

    def hashed(data):
        bits = (at for at in range(len(data) * 8) if data[at // 8] & 0x80 >> at % 8)
        return functools.reduce(operator.xor, (key >> len(RSS_KEY) * 8 - 32 - at & 0xFFFFFFFF for at in bits), 0)

    return {hashed(data) % queues for data in set(inputs)}


@pytest.mark.parametrize("case", [Case("ipip", 4, "fou"), Case("gre", 4, "gue-csum"), Case("sit", 6)], ids=str)
def test_a_tunnel_within_esp(case, uxfrm, two):
    """FOU inside transport-mode ESP: a policy between the ends applies to tunnels, too, and
    nothing of them is seen."""
    with both_ends(case, uxfrm, two, Association(GCM_128, "transport", 4, 4)) as (here, there):
        two.left.ping(here, there)
        two.right.ping(there, here)
        with two.left.entered():
            echo.transfer(here, there, TCP_BYTES)
        wire.assert_only("esp", two.between.seen())


@pytest.mark.parametrize("family", [4, 6])
def test_esp_behind_a_receive_port(family, uxfrm):
    """ESP as the foo: scapy seals a datagram and puts the ESP packet into UDP; the answer comes
    as plain ESP."""
    scapy = pytest.importorskip("test_scapy")
    association = Association(GCM_128, "tunnel", family, family)
    with topology.UxfrmAndWire() as network:
        gateway = Gateway(uxfrm, network.here)
        end = types.SimpleNamespace(network=network, log=gateway.log)
        try:
            version = "-6 " if family == 6 else ""
            start(gateway, [f"{version}fou add port {PORT} ipproto 50"], association.lines(HERE, THERE))
            ours = scapy.security_association(association, THERE, HERE)
            theirs = scapy.security_association(association, HERE, THERE)
            for length in (10, 1000):
                data = echo.payload(length)
                frame = scapy.sealed_request(association, end, ours, data)
                sealed = scapy.packet(frame)
                header, esp = type(sealed)(src=sealed.src, dst=sealed.dst), bytes(sealed.payload)
                in_udp = header / scapy.UDP(sport=7777, dport=PORT) / esp
                network.far.seen()
                network.far.send(frame[:14] + bytes(in_udp))
                answer = scapy.next_esp(end, time.monotonic() + scapy.ANSWER_SECONDS)
                assert answer is not None, f"{drops(gateway)} {gateway.stat()}"
                scapy.assert_answer(association, theirs.decrypt(scapy.packet(answer)), data)
            assert drops(gateway) == {}
        finally:
            gateway.close()


def test_a_tunnel_into_itself_is_stopped(uxfrm, two):
    """The counter-test of nesting: a route leads the tunnel's own packets into the tunnel."""
    gateway = Gateway(uxfrm, two.left)
    try:
        start(gateway, Case("ipip", 4, "fou").lines(HERE, THERE))
        two.left.address("tun1", "172.16.9.1/30")
        two.left.ip(f"route add {THERE.outer[4]}/32 dev tun1 src {HERE.outer[4]}")
        two.left.run("ping", "-c", "2", "-i", "0.1", "-W", "1", "172.16.9.2", check=False)
        assert drops(gateway) == {"tunnel_out_recursion": 2}
    finally:
        gateway.close()


def went(expected, frames, both_ways):
    kinds = {(outgoing, wire.protocol(frame)) for outgoing, frame in frames}
    assert (True, expected) in kinds, f"no {expected} was sent: {kinds}"
    assert not both_ways or (False, expected) in kinds, f"no {expected} was received: {kinds}"
