"""Lists states and policies with pyroute2's netlink socket, as lines of JSON.

pyroute2 brings sockets, dumps and attributes for any netlink family; of NETLINK_XFRM it has only
the number. So the messages are described here, in its own way.
"""

import ipaddress
import json

from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, nlmsg
from pyroute2.netlink.nlsocket import NetlinkSocket

NETLINK_XFRM = 6
NEWSA, GETSA, NEWPOLICY, GETPOLICY = 0x10, 0x12, 0x13, 0x15
SELECTOR = (
    ("sel_daddr", "16s"),
    ("sel_saddr", "16s"),
    ("sel_ports", "8s"),
    ("sel_family", "H"),
    ("sel_prefixlen_d", "B"),
    ("sel_prefixlen_s", "B"),
    ("sel_proto", "B"),
    ("sel_pad", "3s"),
    ("sel_ifindex", "i"),
    ("sel_user", "I"),
)
LIFETIMES = (("lft", "64s"), ("curlft", "32s"))


class Dump(nlmsg):
    """A dump of all is asked for without a body."""

    fields = ()


class State(nlmsg):
    """struct xfrm_usersa_info"""

    prefix = "XFRMA_"
    fields = (
        *SELECTOR,
        ("daddr", "16s"),
        ("spi", ">I"),
        ("proto", "B"),
        ("id_pad", "3s"),
        ("saddr", "16s"),
        *LIFETIMES,
        ("stats", "12s"),
        ("seq", "I"),
        ("reqid", "I"),
        ("family", "H"),
        ("mode", "B"),
        ("replay_window", "B"),
        ("flags", "B"),
        ("end_pad", "7s"),
    )
    nla_map = ((18, "XFRMA_ALG_AEAD", "hex"), (20, "XFRMA_ALG_AUTH_TRUNC", "hex"), (2, "XFRMA_ALG_CRYPT", "hex"))


class Policy(nlmsg):
    """struct xfrm_userpolicy_info"""

    prefix = "XFRMA_"
    fields = (
        *SELECTOR,
        *LIFETIMES,
        ("priority", "I"),
        ("index", "I"),
        ("dir", "B"),
        ("action", "B"),
        ("flags", "B"),
        ("share", "B"),
        ("end_pad", "4s"),
    )
    nla_map = ((5, "XFRMA_TMPL", "hex"),)


def address(family, packed):
    return str(ipaddress.ip_address(packed[: 4 if family == 2 else 16]))


def state(message):
    return {
        "src": address(message["family"], message["saddr"]),
        "dst": address(message["family"], message["daddr"]),
        "spi": message["spi"],
        "reqid": message["reqid"],
        "algorithm": bytes.fromhex(message.get_attr("XFRMA_ALG_AEAD").replace(":", ""))[:64].rstrip(b"\0").decode(),
    }


def policy(message):
    family = message["sel_family"]
    return {
        "src": f"{address(family, message['sel_saddr'])}/{message['sel_prefixlen_s']}",
        "dst": f"{address(family, message['sel_daddr'])}/{message['sel_prefixlen_d']}",
        "dir": message["dir"],
        "templates": len(message.get_attr("XFRMA_TMPL").split(":")) // 64,
    }


with NetlinkSocket(family=NETLINK_XFRM) as xfrm:
    xfrm.register_policy({NEWSA: State, NEWPOLICY: Policy})
    xfrm.bind()
    for kind, tell in ((GETSA, state), (GETPOLICY, policy)):
        for answer in xfrm.nlm_request(Dump(), msg_type=kind, msg_flags=NLM_F_REQUEST | NLM_F_DUMP):
            print(json.dumps(tell(answer)))
