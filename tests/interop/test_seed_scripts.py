"""Published `ip xfrm` scripts as they stand: uxfrm at both ends, and traffic flows.

        ┌─ namespace left ─────────────┐  veth   ┌─ namespace right ────────────┐
        │ dummy0         192.168.13.1  │         │ dummy0         192.168.12.1  │   flow-cache.sh
        │ ens4f0         192.168.11.2 ─┼─────────┼ ens4f0         192.168.11.1  │
        ├──────────────────────────────┤         ├──────────────────────────────┤
        │ eth4              14.0.0.52 ─┼─────────┼ eth4              14.0.0.70  │   niantic-*.batch
        └──────────────────────────────┘         └──────────────────────────────┘
"""

import pathlib
import subprocess

import echo
import topology
import wire

DATA = pathlib.Path(__file__).parent / "data"
TCP_BYTES = 256 * 1024
ESP_IV = slice(14 + 20 + 8, 14 + 20 + 8 + 8)  # behind Ethernet, IPv4, SPI and sequence number
SWAPPED = {
    "192.168.11.1": "192.168.11.2",
    "192.168.11.2": "192.168.11.1",
    "192.168.12.": "192.168.13.",
    "192.168.13.": "192.168.12.",
}
NIANTIC_ADDRESSES = {"left": "14.0.0.52/24", "right": "14.0.0.70/24"}

# Stands before `ip` on the script's PATH: keeps the xfrm commands for uxfrm, and lets the others
# through.
RECORDER = """\
#!/bin/sh
case $1 in
xfrm) echo "$*" >>"$XFRM_BATCH" ;;
*) PATH=$PATH_OF_IP exec ip "$@" ;;
esac
"""


def test_the_flow_cache_slides_script(uxfrm, tmp_path):
    """`spi 1` both ways, `auth sha1` with a 16-byte key, templates without a source address."""
    script = (DATA / "flow-cache.sh").read_text()
    with topology.TwoGateways("ens4f0") as network:
        for namespace, text in ((network.left, script), (network.right, swapped(script))):
            namespace.tap("dummy0")  # not every kernel has dummy devices; all that uxfrm runs on have TAPs
            network.gateway(uxfrm, namespace).start(recorded(namespace, text, tmp_path))
        traffic_flows(network, "192.168.13.1", "192.168.12.1")


def test_the_niantic_slides_batch(uxfrm):
    """An ASCII key, the same SPI both ways, selectors with host bits, `offload` on a device that
    has none."""
    with topology.TwoGateways("eth4") as network:
        for namespace, side in ((network.left, "left"), (network.right, "right")):
            namespace.address("eth4", NIANTIC_ADDRESSES[side])
            network.gateway(uxfrm, namespace).start((DATA / f"niantic-{side}.batch").read_text().splitlines())
        assert_no_iv_twice(traffic_flows(network, "14.0.0.52", "14.0.0.70"))


def swapped(script):
    """The receive side's script: what is mine on the one is remote on the other."""
    for index, old in enumerate(SWAPPED):
        script = script.replace(old, f"<{index}>")
    for index, new in enumerate(SWAPPED.values()):
        script = script.replace(f"<{index}>", new)
    return script


def recorded(namespace, script, directory):
    """Runs the script in the namespace; returns the `ip xfrm` lines that it would have given to
    the kernel."""
    programs = directory / namespace.name
    programs.mkdir()
    batch = programs / "batch"
    (programs / "ip").write_text(RECORDER)
    (programs / "ip").chmod(0o755)
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {"PATH": f"{programs}:{path}", "PATH_OF_IP": path, "XFRM_BATCH": str(batch)}
    with namespace.entered():
        subprocess.run(["sh", "-euc", script], env=environment, check=True)
    return batch.read_text().splitlines()


def traffic_flows(network, left, right):
    network.between.seen()
    network.left.ping(left, right)
    network.right.ping(right, left)
    for namespace, source, destination in ((network.left, left, right), (network.right, right, left)):
        with namespace.entered():
            echo.transfer(source, destination, TCP_BYTES)
    frames = network.between.seen()
    wire.assert_only("esp", frames)
    for gateway in network.gateways:
        gateway.stop()
    return frames


def assert_no_iv_twice(frames):
    """AES-GCM with one key for both directions: an IV that both ends use gives the plaintext
    away."""
    ivs = [frame[ESP_IV] for _, frame in frames if wire.protocol(frame) == "esp"]
    assert len(set(ivs)) == len(ivs), f"{len(ivs) - len(set(ivs))} of {len(ivs)} IVs are used twice"
