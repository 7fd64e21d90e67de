"""ESP as the foo: ESP packets in FOU (`ipproto 50`), each inner flow from a source port of its own,
so that networks spread the flows of one SA.

A state with `encap espinudp 0 PORT 0.0.0.0` sends so, and `ip fou add port PORT ipproto 50`
takes it. On the wire it is the same as ESP in UDP, and as that Linux sends and takes it, though
from one port. It does not take it by its own FOU port: its XFRM reads the protocol from the IP
header, finds UDP there, and counts XfrmInHdrError (`net/ipv4/xfrm4_input.c: xfrm4_rcv`, seen
with 6.1).
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import re
import socket
import struct
import time

import pytest

import association
import echo
import patience
import topology
import wire
from gateway import Gateway
from namespace import ping_command
from test_tunnel import drops, start
from topology import HERE, THERE

PORT = 5556
LINUX_FROM, LINUX_TO = 7777, 4500  # the latter is where the guest's agent has a socket for ESP
TCP_BYTES = 128 * 1024
FLOWS = 8
LOCAL_PORTS = range(32768, 61000)  # net.ipv4.ip_local_port_range of a new namespace
QUIET_SECONDS = 0.2
UDP_SEGMENT, JOINED, JOINED_BYTES = 103, 5, 200
ANY = {4: "0.0.0.0", 6: "::"}
# A number of echo.payload that no segment ends in.
NUMBERED = re.compile(echo.MARKER + b"(.{8})(?=" + echo.MARKER + b")", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class InFou(association.Association):
    """An association whose packets go in FOU both ways."""

    def secret_towards(self, side):
        """One for both ends, whose states differ: a receiver by FOU has no encapsulation in its
        state, as FOU has taken it off."""
        return association.secret(str(self), side.spi)

    def encapsulated(self, source_port, port):
        return dataclasses.replace(self, extra=f"encap espinudp {source_port} {port} {ANY[self.outer]}")

    def ours(self, here, there, port):
        """One end that is uxfrm, and sends to `port`."""
        return self.lines_of([self.encapsulated(0, port).state(here, there), self.state(there, here)], here, there)

    def of_linux(self, here, there):
        sent = self.encapsulated(LINUX_FROM, PORT).state(here, there)
        taken = self.encapsulated(0, LINUX_TO).state(there, here)
        return self.lines_of([sent, taken], here, there)

    def lines_of(self, states, here, there):
        if self.mode == "tunnel":
            return states + self.policies(here, there)
        # The datagrams themselves have to be let in: Linux asks the policies before FOU takes UDP
        # off.
        ends = [association.host_prefix(side.outer[self.outer]) for side in (there, here)]
        let_in = f"xfrm policy add src {ends[0]} dst {ends[1]} proto 17 dport {PORT} dir in"
        return [*states, *ordered(self.policies(here, there), 10), f"{let_in} priority 1"]

    def port(self):
        return f"{'-6 ' if self.outer == 6 else ''}fou add port {PORT} ipproto 50"


def ordered(policies, priority):
    return [line.replace(" tmpl ", f" priority {priority} tmpl ") for line in policies]


CASES = [
    InFou(association.GCM_128, mode, inner, outer)
    for mode, inner, outer in (
        ("tunnel", 4, 4),
        ("tunnel", 6, 6),
        ("tunnel", 6, 4),
        ("tunnel", 4, 6),
        ("transport", 4, 4),
        ("transport", 6, 6),
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_linux_takes_it_and_sends_it_back(case, uxfrm, qemu_network):
    linux, between = qemu_network.linux, qemu_network.between
    here, there = case.endpoints(HERE), case.endpoints(THERE)
    gateway = Gateway(uxfrm, qemu_network.here)
    try:
        start(gateway, [case.port()], case.ours(HERE, THERE, LINUX_TO))
        linux.xfrm(case.of_linux(THERE, HERE))
        try:
            qemu_network.here.ping(here, there)
            linux.run(ping_command(there, here, echo.MARKER))
            with qemu_network.here.entered():
                flows = [ports_of_a_flow(between, here, there) for _ in range(FLOWS)]
            linux.transfer(there, here, TCP_BYTES)
        except Exception as failure:
            told = linux.run("cat /proc/net/xfrm_stat; ip -s xfrm state", check=False)
            failure.add_note(f"uxfrm: {drops(gateway)} {gateway.statistics()}\n{gateway.log()}\nLinux: {told}")
            raise
        assert_spread(flows)
        assert {port for outgoing, port, _ in datagrams(between.seen()) if not outgoing} == {LINUX_FROM}
        assert drops(gateway) == {}
    finally:
        linux.run("ip xfrm state flush; ip xfrm policy flush", check=False)
        gateway.close()


@contextlib.contextmanager
def both_ends(case, uxfrm, workers):
    """Two gateways that send each other a case's packets."""
    with topology.TwoGateways("wire0") as two:
        for namespace, side in ((two.left, HERE), (two.right, THERE)):
            topology.place(namespace, "wire0", side)
        left, right = (Gateway(uxfrm, namespace, workers=workers) for namespace in (two.left, two.right))
        try:
            start(left, [case.port()], case.ours(HERE, THERE, PORT))
            start(right, [case.port()], case.ours(THERE, HERE, PORT))
            try:
                yield two
            except Exception as failure:
                failure.add_note(f"left: {drops(left)} {left.statistics()}\nright: {drops(right)} {right.statistics()}")
                raise
            assert drops(left) == drops(right) == {}
        finally:
            left.close()
            right.close()


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[4]], ids=str)
@pytest.mark.parametrize("workers", [1, 2])
def test_uxfrm_at_both_ends(case, workers, uxfrm):
    here, there = case.endpoints(HERE), case.endpoints(THERE)
    with both_ends(case, uxfrm, workers) as two:
        two.left.ping(here, there)
        two.right.ping(there, here)
        with two.left.entered():
            flows = [ports_of_a_flow(two.between, here, there, workers) for _ in range(FLOWS)]
        assert_spread(flows)


def test_what_a_device_has_joined_is_taken_too(uxfrm):
    """As with GRO, which joins datagrams of one flow: here by who sends them, with
    `UDP_SEGMENT`. No state has such an SPI, and all are counted as ESP."""
    with topology.TwoGateways("wire0") as two, contextlib.ExitStack() as stack:
        for namespace, side in ((two.left, HERE), (two.right, THERE)):
            topology.place(namespace, "wire0", side)
        gateway = Gateway(uxfrm, two.left)
        stack.callback(gateway.close)
        start(gateway, [CASES[0].port(), CASES[1].port()], [])
        for family, kind in ((4, socket.AF_INET), (6, socket.AF_INET6)):
            with two.right.entered():
                sender = stack.enter_context(socket.socket(kind, socket.SOCK_DGRAM))
            sender.bind((THERE.outer[family], 0))
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, JOINED_BYTES)
            sender.sendto(b"SPI!" * (JOINED * JOINED_BYTES // 4), (HERE.outer[family], PORT))
        patience.wait_for(lambda: gateway.statistics().get("XfrmInNoStates", 0) >= 2 * JOINED, gateway.stat)
        assert drops(gateway) == {}
        assert gateway.statistics() == {"XfrmInNoStates": 2 * JOINED}


@pytest.mark.parametrize("workers", [1, 2])
def test_flows_at_the_same_time_keep_port_and_order(workers, uxfrm):
    """Eight at once. Without encryption the wire shows whose packets they are, and that their
    bytes leave in order."""
    case = InFou(association.COMBINED["null-sha1"], "tunnel", 4, 4)
    here, there = case.endpoints(HERE), case.endpoints(THERE)
    with both_ends(case, uxfrm, workers) as two, two.left.entered():
        two.between.seen()
        with concurrent.futures.ThreadPoolExecutor(FLOWS) as flows:
            transfers = [flows.submit(echo.transfer, here, there, TCP_BYTES) for _ in range(FLOWS)]
        assert [transfer.exception() for transfer in transfers] == [None] * FLOWS
        ports, numbers = collections.defaultdict(set), collections.defaultdict(list)
        for outgoing, frame in two.between.seen():
            if not outgoing or wire.protocol(frame) != f"ipv4 protocol {wire.UDP}":
                continue
            flow = frame[70:72]  # behind Ethernet, IP, UDP, ESP and IP
            ports[flow].add(int.from_bytes(frame[34:36]))
            numbers[flow] += [int.from_bytes(number) for number in NUMBERED.findall(frame)]
        assert_spread(ports.values())
        assert len(ports) == FLOWS
        for flow in numbers.values():
            flow = list(dict.fromkeys(flow))  # what TCP sends again comes later, and says nothing of order
            assert len(flow) > TCP_BYTES // 24 // 2 and flow == sorted(flow), "a flow left out of order"


def ports_of_a_flow(between, source, destination, workers=1):
    """Moves a flow one way and back, and says which source ports its datagrams to the other end
    had. They left in order; with several workers their numbers do not tell, as each worker has
    its own block of them."""
    between.seen()
    echo.transfer(source, destination, TCP_BYTES)
    frames = between.seen()
    while last_words := seen_meanwhile(between):  # of TCP
        frames += last_words
    assert not any(echo.MARKER in frame for _, frame in frames), "plaintext on the wire"
    sent = [(port, number) for outgoing, port, number in datagrams(frames) if outgoing]
    assert workers > 1 or sent == sorted(sent, key=lambda datagram: datagram[1]), "a flow left out of order"
    return {port for port, _ in sent}


def seen_meanwhile(between):
    time.sleep(QUIET_SECONDS)
    return [(outgoing, frame) for outgoing, frame in between.seen() if wire.protocol(frame) != "housekeeping"]


def datagrams(frames):
    """Direction, source port and sequence number of all that is in FOU; nothing else may be
    there."""
    for outgoing, frame in frames:
        kind = wire.protocol(frame)
        if kind == "housekeeping":
            continue
        assert kind in ("esp-in-udp", f"ipv4 protocol {wire.UDP}", f"ipv6 protocol {wire.UDP}"), kind
        source, destination, number = struct.unpack_from("!HH8xI", frame, 34 if frame[14] >> 4 == 4 else 54)
        assert destination in (PORT, LINUX_TO)
        yield outgoing, source, number


def assert_spread(flows):
    """Each flow keeps its port, eight flows have at least seven, and none of them is a
    service's."""
    assert all(len(ports) == 1 for ports in flows), flows
    assert len(set.union(*flows)) >= 7, flows
    assert all(port in LOCAL_PORTS for port in set.union(*flows)), flows
