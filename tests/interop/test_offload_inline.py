"""A device beside inline mode, with a real Linux kernel as the other gateway: the picture is test_inline_linux_peer's."""

import pytest

import prerequisite
from association import GCM_128, Association
from gateway import Gateway
from test_inline_linux_peer import BEHIND, INLINE, InlineAndLinux
from test_offload import CRYPTO, DEVICE, IN_UDP, PACKET, TCP_BYTES, WINDOW, assert_accounts, client, device, offloaded
from topology import THERE


@pytest.fixture(scope="module")
def inline_network():
    prerequisite.root()
    prerequisite.packet_filter()
    prerequisite.linux_peer()
    with InlineAndLinux() as made:
        yield made


@pytest.mark.parametrize(
    "kind, extra", [(PACKET, WINDOW), (CRYPTO, WINDOW), (PACKET, f"{WINDOW} {IN_UDP}")], ids=["packet", "crypto", "packet-udp"]
)
def test_a_device_stands_beside_inline_mode(kind, extra, uxfrm, inline_network):
    network = inline_network
    association = Association(GCM_128, "tunnel", 4, 4, extra, reqid=8)
    lines = offloaded(kind, association, BEHIND, THERE)
    forwarded = [line.replace(" dir in ", " dir fwd ") for line in lines if line.startswith("xfrm policy") and " dir in " in line]
    gateway = Gateway(uxfrm, network.here)
    try:
        gateway.start(lines + forwarded, more=INLINE + DEVICE.format(profile="unlimited"))
        network.linux.xfrm(association.lines(THERE, BEHIND))
        network.assert_protected(association)
        found = device(uxfrm, network.here, part="states")
        assert_accounts(found)
        assert min(state["packets"] for state in found["states"]) > 2 * TCP_BYTES / 65536, found
        gateway.stop()
    except Exception as failure:
        shown = client(uxfrm, network.here, "dev", "show nic0 states", check=False)[1]
        failure.add_note(f"Linux counted {network.linux.statistics()}\n{gateway.statistics()}\n{shown}\n{gateway.log()}")
        raise
    finally:
        gateway.close()
