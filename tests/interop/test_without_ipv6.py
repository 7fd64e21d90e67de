"""A kernel that was told to do without IPv6 (`ipv6.disable=1`), as hardened servers often are:
User-Mode Linux, with uxfrm in it."""

import subprocess

import prerequisite
import topology
from prerequisite import REPOSITORY

CONFIG = """
[host]
tun = "uxfrm0"
at_exit = "open"
[wire]
encapsulation = "esp"
udp_ports = [4500]
[xfrm]
batch = ["tunnel.batch"]
sequences = "sequences"
[control]
enabled = true
"""
BATCH = """
xfrm state add src 10.9.0.1 dst 10.9.0.2 proto esp spi 0x1001 mode tunnel aead rfc4106(gcm(aes)) 0x1111111111111111111111111111111111111111 128
xfrm policy add src 10.9.0.1/32 dst 10.2.0.0/24 dir out tmpl src 10.9.0.1 dst 10.9.0.2 proto esp mode tunnel
xfrm policy add src ::/0 dst fd02::/64 dir out action block
"""


JOB = """
ip link set lo up; ip addr add 10.9.0.1/24 dev vec0; ip link set vec0 up
mkdir -p /dev/net; [ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
cd /run/channel
"$UXFRM" run config.toml > log 2>&1 & gateway=$!
for _ in $(seq 1200); do grep -q ready log && break; [ -e /proc/$gateway ] || break; sleep 0.1; done
ping -c3 -i0.2 -W1 -I 10.9.0.1 10.2.0.5
{
"$UXFRM" xfrm -s state list | grep -o '3(packets)'
"$UXFRM" xfrm policy add src ::/0 dst fd03::/64 dir out action block && echo block
"$UXFRM" link add name tun1 up type ipip remote 10.9.0.2 local 10.9.0.1 && echo link
ip rule | grep -c 'lookup 30000'
kill -TERM $gateway; wait $gateway; echo ended $?
ip rule | grep -c 'lookup 30000'
} > said 2>&1
"""


def test_a_gateway_runs_and_its_tunnels_carry_ipv4(uxfrm, tmp_path):
    prerequisite.linux_peer()
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "tunnel.batch").write_text(BATCH)
    (tmp_path / "job").write_text(f"UXFRM={uxfrm}\n{JOB}")
    with topology.Hosts() as hosts:
        outside = hosts.namespace("no6")
        outside.tap("tap0")
        peer = [REPOSITORY / "tests" / "peer" / "linux-peer", outside.name, "tap0", tmp_path, "900", "ipv6.disable=1"]
        done = subprocess.run(peer, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said, log = (tmp_path / "said", tmp_path / "log")
    told = (log.read_text() if log.exists() else "") + done.stdout
    assert said.read_text().splitlines() == ["3(packets)", "block", "link", "1", "ended 0", "0"], told
    assert "ERROR" not in log.read_text(), told
