"""An IKE daemon as far as its sockets go: run under `uxfrm exec`, told what to do by a test through
standard input.

    fake_ike.py ADDRESS...

Binds UDP port 4500 of each address as charon and pluto do. Says `{"ready": [...]}`, and then a line
of JSON for each datagram that comes. A line of JSON on standard input, `{"from": ADDRESS, "source":
ADDRESS or null, "to": [ADDRESS, PORT], "data": HEX}`, is sent from the socket that is bound to
`from`.
"""

import ipaddress
import json
import select
import socket
import struct
import sys

PORT = 4500
IP_PKTINFO, IP_XFRM_POLICY, IPV6_XFRM_POLICY, UDP_ENCAP, ESP_IN_UDP = 8, 17, 35, 100, 2
BYPASS = bytes(160) + b"\1" + bytes(7)  # struct xfrm_userpolicy_info: direction out, allow


def opened(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind((address, PORT))
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        made.setsockopt(socket.IPPROTO_IPV6, IPV6_XFRM_POLICY, BYPASS)
    else:
        made.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        made.setsockopt(socket.IPPROTO_IP, IP_XFRM_POLICY, BYPASS)
    made.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, ESP_IN_UDP)
    assert made.getsockname()[:2] == (address, PORT), made.getsockname()
    assert made.family == family
    return made


def destination(ancillary):
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            return str(ipaddress.ip_address(data[8:12]))
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            return str(ipaddress.ip_address(data[:16]))
    return None


def source(address):
    packed = ipaddress.ip_address(address).packed
    if len(packed) == 4:
        return [(socket.IPPROTO_IP, IP_PKTINFO, struct.pack("=I4s4x", 0, packed))]
    return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, packed + bytes(4))]


def say(what):
    print(json.dumps(what), flush=True)


def receive(bound, made):
    data, ancillary, flags, sender = made.recvmsg(65536, 256)
    say({"at": bound, "from": list(sender[:2]), "to": destination(ancillary), "data": data.hex(), "flags": flags})


def send(sockets, order):
    ancillary = source(order["source"]) if order["source"] else []
    data = bytes.fromhex(order["data"])
    try:
        sent = sockets[order["from"]].sendmsg([data[:4], data[4:]], ancillary, 0, tuple(order["to"]))
        assert sent == len(data), sent
    except OSError as error:
        say({"error": error.errno})


def main(addresses):
    sockets = {address: opened(address) for address in addresses}
    say({"ready": addresses})
    poll = select.epoll()
    for made in sockets.values():
        poll.register(made, select.EPOLLIN)
    poll.register(sys.stdin, select.EPOLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == sys.stdin.fileno():
                line = sys.stdin.readline()
                if not line:
                    return
                send(sockets, json.loads(line))
            for bound, made in sockets.items():
                if made.fileno() == descriptor:
                    receive(bound, made)


main(sys.argv[1:])
