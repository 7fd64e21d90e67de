"""uxfrm against scapy's SecurityAssociation, both ways, for every transform that both know.

The test is the far end of the wire (topology.UxfrmAndWire): it sends a datagram that scapy has
encrypted, the echo service behind uxfrm answers, and scapy decrypts the answer. So both directions
are compared byte for byte with an independent implementation.

The same cases run against the Linux kernel (topology.LinuxAndWire). That proves the table of
transforms and the test itself, and shows a difference from Linux at once.
"""

import time

import pytest

import echo
import patience
import prerequisite
import topology
from association import ALL_THAT_SCAPY_KNOWS, CHACHA20_POLY1305, GCM_128, GCM_256, Association
from gateway import Gateway
from topology import HERE, THERE

try:
    from scapy.layers import ipsec
    from scapy.layers.inet import IP, UDP, IPOption_RR
    from scapy.layers.inet6 import IPv6
    from scapy.layers.l2 import Ether
except ImportError:
    prerequisite.not_run("needs scapy: apt-get install python3-scapy python3-cryptography")

OUR_PORT = 40000
ANSWER_SECONDS = patience.SECONDS
LENGTHS = [0, 1, 13, 64, 1200]

TRANSPORT = [Association(transform, "transport", 4, 4) for transform in ALL_THAT_SCAPY_KNOWS]
TUNNEL = [
    Association(transform, "tunnel", inner, outer)
    for transform in (GCM_128, CHACHA20_POLY1305)
    for inner in (4, 6)
    for outer in (4, 6)
]
TRANSPORT_6 = [Association(transform, "transport", 6, 6) for transform in (GCM_256, CHACHA20_POLY1305)]
# scapy 2.5 leaves the high half out of a separate ICV, so ESN is compared for the combined-mode
# algorithms only.
ESN = [
    Association(transform, "transport", 4, 4, extra="replay-window 128 flag esn")
    for transform in ALL_THAT_SCAPY_KNOWS
    if transform.aead
]


class UxfrmEnd:
    """The end under test."""

    def __init__(self, binary):
        self.network = topology.UxfrmAndWire()
        self._gateway = Gateway(binary, self.network.here)

    def protect(self, lines):
        self._gateway.start(lines)

    def log(self):
        return self._gateway.log()

    def statistics(self):
        return self._gateway.statistics()

    def release(self):
        if self._gateway.running():
            self._gateway.stop()

    def close(self):
        self._gateway.close()
        self.network.close()


class LinuxEnd:
    """The end that shows whether the test is right."""

    def __init__(self, _binary):
        prerequisite.linux_peer()
        self.network = topology.LinuxAndWire()

    def protect(self, lines):
        self.network.linux.xfrm(lines)

    def log(self):
        linux = self.network.linux
        where_packets_went = linux.run("ip -s -s link show dev vec0; cat /proc/net/snmp", check=False)
        return f"{linux.statistics()}\n{where_packets_went}\n{linux.console()}"

    def release(self):
        self.network.linux.xfrm([])

    def close(self):
        self.network.close()


@pytest.fixture(scope="module", params=[UxfrmEnd, LinuxEnd], ids=["uxfrm", "linux"])
def either_end(request):
    prerequisite.root()
    binary = request.getfixturevalue("uxfrm") if request.param is UxfrmEnd else None
    made = request.param(binary)
    yield made
    made.close()


@pytest.fixture
def end(either_end):
    yield either_end
    either_end.release()


@pytest.mark.parametrize("association", TRANSPORT + TRANSPORT_6 + TUNNEL, ids=str)
def test_datagrams_both_ways(association, end):
    end.protect(association.lines(HERE, THERE))
    exchange(association, end)


@pytest.mark.parametrize("association", ESN, ids=str)
def test_extended_sequence_numbers(association, end):
    end.protect(association.lines(HERE, THERE))
    exchange(association, end, esn_en=True)


@pytest.mark.parametrize("transform", [GCM_128, CHACHA20_POLY1305], ids=lambda transform: transform.name)
def test_extended_sequence_numbers_pass_2_to_the_32(transform, end):
    """Both SAs begin three packets before 2^32, so the high half changes on the way, in both
    directions."""
    last = 2**32 - 3
    extra = f"replay-window 128 flag esn replay-seq {last} replay-oseq {last}"
    association = Association(transform, "transport", 4, 4, extra=extra)
    end.protect(association.lines(HERE, THERE))
    ours = security_association(association, THERE, HERE, esn_en=True)
    theirs = security_association(association, HERE, THERE, esn_en=True)
    for sequence in range(last + 1, last + 7):
        theirs.esn = ours.esn = sequence >> 32
        ours.seq_num = sequence & 0xFFFFFFFF
        assert_answered(association, end, ours, theirs, echo.payload(64))


def test_esp_in_udp(end):
    association = Association(GCM_128, "tunnel", 4, 4, extra="encap espinudp 4500 4500 0.0.0.0")
    end.protect(association.lines(HERE, THERE))
    exchange(association, end, nat_t_header=UDP(sport=4500, dport=4500))


def test_options_into_which_hosts_write_are_taken(end):
    """Record route: whoever takes the packet adds its address, and the header's checksum is no
    more what it was."""
    association = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 0")
    end.protect(association.lines(HERE, THERE))
    ours = security_association(association, THERE, HERE)
    theirs = security_association(association, HERE, THERE)
    frame = Ether(sealed_request(association, end, ours, b"recorded"))
    frame[IP].options = [IPOption_RR(pointer=4, routers=["0.0.0.0"] * 2)]
    del frame[IP].ihl, frame[IP].len, frame[IP].chksum
    end.network.far.seen()
    end.network.far.send(bytes(frame))
    answer = next_esp(end, time.monotonic() + ANSWER_SECONDS)
    assert answer is not None, f"{end.statistics()}\n{end.log()}"
    assert_answer(association, theirs.decrypt(packet(answer)), b"recorded")


def test_a_wrong_icv_is_not_answered(end):
    """The counter-test: one flipped bit in the ICV, and the datagram does not reach the echo
    service."""
    association = Association(GCM_128, "tunnel", 4, 4)
    end.protect(association.lines(HERE, THERE))
    frame = bytearray(sealed_request(association, end, security_association(association, THERE, HERE), b"lost"))
    frame[-1] ^= 1
    end.network.far.seen()
    end.network.far.send(bytes(frame))
    assert next_esp(end, time.monotonic() + 0.5) is None
    exchange(association, end)  # and the SA still works, with the same sequence number


def test_reordered_is_answered_and_replayed_is_not(end):
    association = Association(GCM_128, "transport", 4, 4, extra="replay-window 32")
    end.protect(association.lines(HERE, THERE))
    ours = security_association(association, THERE, HERE)
    theirs = security_association(association, HERE, THERE)
    end.network.far.seen()
    # 40 moves the window of 32 to 9..=40, so 8 is too old. 41 is new: with its answer all others
    # are there.
    for step, sequence in enumerate((5, 3, 5, 3, 40, 8, 9, 40, 41)):
        ours.seq_num = sequence
        end.network.far.send(sealed_request(association, end, ours, f"{step}: {sequence}".encode()))
    answers = []
    while b"8: 41" not in answers:
        frame = next_esp(end, time.monotonic() + ANSWER_SECONDS)
        assert frame is not None, f"no more answers after {answers}:\n{end.log()}"
        answers.append(bytes(theirs.decrypt(packet(frame))[UDP].payload))
    assert answers == [b"0: 5", b"1: 3", b"4: 40", b"6: 9", b"8: 41"]


def exchange(association, end, **scapy_arguments):
    ours = security_association(association, THERE, HERE, **scapy_arguments)
    theirs = security_association(association, HERE, THERE, **scapy_arguments)
    end.network.far.seen()
    for length in LENGTHS:
        assert_answered(association, end, ours, theirs, echo.payload(length))


def assert_answered(association, end, ours, theirs, data):
    end.network.far.send(sealed_request(association, end, ours, data))
    frame = next_esp(end, time.monotonic() + ANSWER_SECONDS)
    assert frame is not None, f"no answer to a datagram of {len(data)} bytes:\n{end.log()}"
    assert echo.MARKER not in frame or association.transform.scapy_cipher == "NULL"
    assert_answer(association, theirs.decrypt(packet(frame)), data)


def security_association(association, sender, receiver, **arguments):
    """scapy's SA from one side to the other."""
    if association.mode == "tunnel":
        arguments["tunnel_header"] = ip(association.outer)(
            src=sender.outer[association.outer], dst=receiver.outer[association.outer]
        )
    keys = association.transform.scapy(association.secret_towards(receiver))
    spi = int(association.spi_of(receiver), 16)
    return ipsec.SecurityAssociation(ipsec.ESP, spi=spi, **keys, **arguments)


def sealed_request(association, end, sa, data):
    """A frame with a datagram to the echo service, encrypted by scapy."""
    plain = ip(association.inner)(src=association.endpoints(THERE), dst=association.endpoints(HERE))
    datagram = plain / UDP(sport=OUR_PORT, dport=echo.PORT) / data
    complete = ip(association.inner)(bytes(datagram))  # lengths and checksums as they would be on the wire
    sealed = sa.encrypt(complete)
    if sa.nat_t_header:
        del sealed[UDP].len  # scapy 2.5 works it out before the ESP is there
    return bytes(Ether(dst=end.network.mac) / sealed)


def next_esp(end, deadline):
    """The next frame from the other end that carries ESP, raw or in UDP."""
    while (frame := end.network.far.next_frame(deadline)) is not None:
        if packet(frame) is not None and packet(frame).haslayer(ipsec.ESP):
            return frame
    return None


def packet(frame):
    parsed = Ether(frame)
    return parsed.payload if isinstance(parsed.payload, (IP, IPv6)) else None


def assert_answer(association, answer, data):
    """What scapy decrypted is exactly the datagram that the echo service sent."""
    here, there = association.endpoints(HERE), association.endpoints(THERE)
    assert (answer.src, answer.dst) == (here, there)
    assert (answer[UDP].sport, answer[UDP].dport) == (echo.PORT, OUR_PORT)
    assert bytes(answer[UDP].payload) == data
    sent_checksum = answer[UDP].chksum
    rebuilt = ip(association.inner)(bytes(answer))
    del rebuilt[UDP].chksum
    assert ip(association.inner)(bytes(rebuilt))[UDP].chksum == sent_checksum


def ip(family):
    return IP if family == 4 else IPv6
