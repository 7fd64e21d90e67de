"""The test's own end of a link: sees every frame on a device, and can send frames from it."""

import socket
import struct
import time

import echo
from linux_guest import RING_ETHERTYPE

ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
RECEIVE_BUFFER = 64 << 20
ETHERTYPE = {0x0800: "ipv4", 0x86DD: "ipv6", 0x0806: "arp", RING_ETHERTYPE: "doorbell"}
ESP, UDP, ICMPV6, HOP_BY_HOP, FRAGMENT = 50, 17, 58, 0, 44
IKE_PORT, ESP_IN_UDP_PORT = 500, 4500
NON_ESP_MARKER = bytes(4)
NEIGHBOUR_DISCOVERY = range(130, 144)  # MLD, router and neighbour discovery, MLDv2


class Wire:
    """A packet socket on one device of a namespace."""

    def __init__(self, namespace, device):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            self._socket.bind((device, ETH_P_ALL))

    def close(self):
        self._socket.close()

    def send(self, frame):
        self._socket.send(frame)

    def next_frame(self, deadline):
        """The next frame that came in at the device, or None at the deadline (`time.monotonic`)."""
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                frame, address = self._socket.recvfrom(65536)
            except TimeoutError:
                return None
            if address[2] != socket.PACKET_OUTGOING:
                return frame
        return None

    def seen(self):
        """Takes all frames seen so far, in either direction, as [(is_outgoing, frame)]."""
        self._socket.setblocking(False)
        frames = []
        while True:
            try:
                frame, address = self._socket.recvfrom(65536)
            except BlockingIOError:
                return frames
            frames.append((address[2] == socket.PACKET_OUTGOING, frame))


def protocol(frame):
    """What a frame carries: 'esp', 'esp-in-udp', 'ike', 'housekeeping' (ARP, neighbour
    discovery, LinuxGuest's doorbell), or what else."""
    family = ETHERTYPE.get(struct.unpack_from("!H", frame, 12)[0], "other")
    if family in ("arp", "doorbell"):
        return "housekeeping"
    if family == "ipv4":
        number, payload = frame[23], frame[14 + 4 * (frame[14] & 15) :]
    elif family == "ipv6":
        number, payload = frame[20], frame[54:]
        if number == FRAGMENT:
            number, payload = payload[0], payload[8:]
    else:
        return f"ethertype {frame[12:14].hex()}"
    if number == ESP:
        return "esp"
    if number == UDP and IKE_PORT in struct.unpack_from("!HH", payload):
        return "ike"
    if number == UDP and ESP_IN_UDP_PORT in struct.unpack_from("!HH", payload):
        return "ike" if payload[8:12] == NON_ESP_MARKER else "esp-in-udp"
    if family == "ipv6" and (number == HOP_BY_HOP or (number == ICMPV6 and payload[0] in NEIGHBOUR_DISCOVERY)):
        return "housekeeping"
    return f"{family} protocol {number}"


def spis_sent(frames):
    """The SPIs of what went out as ESP over IPv4, in the order of their first use."""
    sent = (frame[34:38].hex() for outgoing, frame in frames if outgoing and protocol(frame) == "esp")
    return list(dict.fromkeys(sent))


def assert_only(expected, frames):
    """Fails unless `expected` went both ways, nothing else but IKE did, and no frame shows the
    marker."""
    told = [(outgoing, protocol(frame)) for outgoing, frame in frames]
    known = (expected, "ike", "housekeeping")
    strangers = {kind: frame[:96].hex() for (_, kind), (_, frame) in zip(told, frames) if kind not in known}
    assert not strangers, f"on the wire, besides {expected}: {strangers}"
    for outgoing in (True, False):
        direction = "sent" if outgoing else "received"
        assert (outgoing, expected) in told, f"no {expected} was {direction} on the wire"
    assert_no_plaintext(frames)


def assert_no_plaintext(frames):
    plain = [frame for _, frame in frames if echo.MARKER in frame]
    assert not plain, f"{len(plain)} frames in the clear, the first: {plain[0][:96].hex()}" if plain else ""
