#!/usr/bin/python3
"""Writes scapy.txt: for each tunnel an inner packet and what it becomes on the wire, as scapy (2.5) builds it.

    crates/tunnel/tests/vectors/generate.py > crates/tunnel/tests/vectors/scapy.txt

A line is: kind, encapsulation, options, inner packet, outer packet; the packets in hexadecimal. Everything that
`vectors.rs` configures is a constant here: ports 4444 and 5555, TTL 225, TOS 0x10, flow label 0x12345, key 0xc0ffee.
"""

from scapy.fields import BitField, ByteField, ConditionalField, IntField, ShortField
from scapy.layers.inet import GRE, IP, TCP, UDP
from scapy.layers.inet6 import HBHOptUnknown, IPv6, IPv6ExtHdrDestOpt, PadN
from scapy.packet import Packet, Raw


class GUE(Packet):
    """Variant 0 of draft-ietf-intarea-gue-09, with the private field of draft-ietf-intarea-gue-extensions-06."""

    fields_desc = [
        BitField("version", 0, 2),
        BitField("control", 0, 1),
        BitField("hlen", 0, 5),
        ByteField("protocol", 0),
        ShortField("flags", 0),
        ConditionalField(IntField("private", 1 << 31), lambda gue: gue.flags & 1),
        ConditionalField(ShortField("start", 0), lambda gue: gue.flags & 1),
        ConditionalField(ShortField("field", 0), lambda gue: gue.flags & 1),
    ]


INNER = {
    4: IP(src="10.0.0.1", dst="10.0.0.2", tos=0x22, ttl=63, id=7, flags="DF") / TCP(sport=1, dport=2, seq=3) / b"inner",
    6: IPv6(src="fd00::1", dst="fd00::2", tc=0x22, hlim=63, fl=9) / UDP(sport=1, dport=2) / b"inner payload",
}
PROTOCOL = {4: 4, 6: 41}
ETHER_TYPE = {4: 0x0800, 6: 0x86DD}
# A fixed DSCP, and the ECN bits of the inner packet.
TOS = 0x12


def outer(version, protocol, limit=None):
    if version == 4:
        return IP(src="192.0.2.1", dst="192.0.2.2", tos=TOS, ttl=225, id=0, flags="DF", proto=protocol)
    fields = {"src": "2001:db8::1", "dst": "2001:db8::2", "tc": TOS, "hlim": 225, "fl": 0x12345}
    if limit is None:
        return IPv6(nh=protocol, **fields)
    option = HBHOptUnknown(otype=4, optlen=1, optdata=bytes([limit]))
    options = IPv6ExtHdrDestOpt(nh=protocol, options=[option, PadN(optdata=b"\0")], autopad=0)
    return IPv6(nh=60, **fields) / options


def main():
    for kind, version, carried in [
        ("ipip", 4, [4]),
        ("sit", 4, [6, 4]),
        ("gre", 4, [4, 6]),
        ("ip6tnl", 6, [4, 6]),
        ("ip6gre", 6, [4, 6]),
    ]:
        for inner_version in carried:
            inner = bytes(INNER[inner_version])
            for options in [""] if "gre" not in kind else ["", "key", "seq", "csum", "key,seq,csum"]:
                protocol, payload = PROTOCOL[inner_version], Raw(inner)
                if "gre" in kind:
                    fields = {"proto": ETHER_TYPE[inner_version]}
                    if "key" in options:
                        fields |= {"key_present": 1, "key": 0xC0FFEE}
                    if "seq" in options:
                        fields |= {"seqnum_present": 1, "seqence_number": 0}
                    if "csum" in options:
                        fields |= {"chksum_present": 1}
                    protocol, payload = 47, GRE(**fields) / payload
                for encap in ["none", "fou", "fou-csum", "gue", "gue-csum"]:
                    for limit in [None] if version == 4 else [None, 4]:
                        wire = build(version, protocol, payload, encap, limit)
                        named = ",".join(filter(None, [options, "limit" if limit else ""]))
                        print(kind, encap, named or "-", inner.hex(), wire.hex())


def build(version, protocol, payload, encap, limit):
    if encap == "none":
        return bytes(outer(version, protocol, limit) / payload)
    if "gue" in encap:
        payload = GUE(protocol=protocol) / payload
    udp = UDP(sport=4444, dport=5555) if "csum" in encap else UDP(sport=4444, dport=5555, chksum=0)
    return bytes(outer(version, 17, limit) / udp / payload)


if __name__ == "__main__":
    main()
