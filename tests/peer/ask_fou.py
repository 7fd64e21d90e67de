"""Asks generic netlink by hand, a JSON line per answer; `uxfrm exec` runs it with the gateway in
the kernel's place for `fou`.

Arguments: `families` asks the controller for `nlctrl` and `fou` in turn, on one socket; `refused`
sends requests to `fou` that can't be.
"""

import json
import socket
import struct
import sys

NETLINK_GENERIC = 16
CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME = 0x10, 3, 1, 2
REQUEST, ACK, ERROR = 1, 4, 2
ADD, DELETE, GET = 1, 2, 3
PORT, AF, PROTOCOL, TYPE, LOCAL_V4, PEER_V4, IFINDEX = 1, 2, 3, 4, 6, 8, 11


class Asker:
    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self.socket.settimeout(5)
        self.sequence = 0

    def ask(self, kind, command, attributes, flags=REQUEST):
        """Sends a request; the type of the answer, its body, and the port that it came from."""
        self.sequence += 1
        body = struct.pack("=BBH", command, 1, 0) + b"".join(map(attribute, attributes))
        self.socket.sendto(struct.pack("=IHHII", 16 + len(body), kind, flags, self.sequence, 0) + body, (0, 0))
        while True:
            answer, (sender, _) = self.socket.recvfrom(65536)
            length, kind, _, sequence, _ = struct.unpack_from("=IHHII", answer)
            if sequence == self.sequence:
                return kind, answer[16:length], sender


def attribute(pair):
    kind, value = pair
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def read(body):
    """The attributes behind a generic netlink header."""
    found, at = {}, 4
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        found[kind] = body[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def family(asker, name):
    kind, body, sender = asker.ask(CONTROL, GET_FAMILY, [(FAMILY_NAME, name.encode() + b"\0")])
    if kind == ERROR:
        return {"name": name, "errno": -struct.unpack_from("=i", body)[0], "sender": sender}
    return {"name": name, "id": struct.unpack("=H", read(body)[FAMILY_ID])[0], "sender": sender}


def families():
    asker = Asker()
    return [family(asker, name) for name in ("nlctrl", "fou", "nlctrl", "no-such", "fou", "nlctrl")]


def refused():
    asker = Asker()
    number = family(asker, "fou")["id"]
    port, direct = (PORT, b"\x15\xb3"), (TYPE, b"\x01")
    for what, command, attributes in [
        ("protocol 0", ADD, [port, direct, (PROTOCOL, b"\0")]),
        ("no protocol", ADD, [port, direct]),
        ("no type", ADD, [port, (PROTOCOL, b"\x04")]),
        ("type 3", ADD, [port, (TYPE, b"\x03"), (PROTOCOL, b"\x04")]),
        ("no port", ADD, [direct, (PROTOCOL, b"\x04")]),
        ("family 1", ADD, [port, direct, (PROTOCOL, b"\x04"), (AF, b"\x01")]),
        ("peer without port", ADD, [port, direct, (PROTOCOL, b"\x04"), (PEER_V4, b"\x0a\0\0\1")]),
        ("device without address", ADD, [port, direct, (PROTOCOL, b"\x04"), (IFINDEX, b"\1\0\0\0")]),
        ("short address", ADD, [port, direct, (PROTOCOL, b"\x04"), (LOCAL_V4, b"\x7f")]),
        ("nothing to delete", DELETE, [port, direct]),
        ("nothing to get", GET, [port]),
        ("command 9", 9, []),
    ]:
        kind, body, _ = asker.ask(number, command, attributes, REQUEST | ACK)
        yield {"what": what, "errno": -struct.unpack_from("=i", body)[0] if kind == ERROR else None}


for answer in {"families": families, "refused": refused}[sys.argv[1]]():
    print(json.dumps(answer))
