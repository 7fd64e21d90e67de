"""A guard of more rules than one transaction may have, where net.core.wmem_max holds: in an
ordinary user's namespace, as a container has.

Policies that come and go by rules and sets of their own go on, also amid others; what needs all
rules told anew is refused, and leaves nothing behind.
"""

import pathlib
import subprocess

import pytest

import prerequisite
from refusing import Refusing

# With so many rules a change takes seconds, and on a busy machine longer than clients wait.
pytestmark = pytest.mark.alone

# A rule for a source and a destination, in bytes, is somewhat more than the one and less than the
# other.
LEAST, MOST = 520, 560
ENOUGH = 40_000 * LEAST
WHERE = "dst 10.1.0.0/16 dir in"
CONFIG = """
[host]
tun = "uxfrm0"
guard = "require"
[wire]
encapsulation = "esp"
udp_ports = [4500]
[xfrm]
batch = ["policies.batch"]
sequences = "sequences"
[control]
enabled = true
"""
RUN = """
set -eu
ip link set lo up
"$GATEWAY" run config.toml > log 2>&1 & gateway=$!
trap 'kill $gateway; wait $gateway' EXIT
for _ in $(seq 1200); do grep -q ready log && break; kill -0 $gateway; sleep 0.1; done
"""


def room():
    """Bytes of a transaction: the kernel takes twice what is asked for."""
    return 2 * int(pathlib.Path("/proc/sys/net/core/wmem_max").read_text())


def inward(number):
    """Neighbours do otherwise, and share no rule."""
    action = ("block", "allow")[number % 2]
    return f"xfrm policy add src 10.{64 + (number >> 8)}.{number & 255}.0/24 {WHERE} priority {number + 10} action {action}"


def outward(host, priority, action):
    return f"xfrm policy add src 0.0.0.0/0 dst 10.200.0.{host}/32 dir out priority {priority} action {action}"


@pytest.fixture
def answers(uxfrm, tmp_path):
    """Runs a script beside a gateway with as many policies as one transaction has room for, and
    then some."""
    prerequisite.packet_filter()
    prerequisite.programs(nft="nftables", cc="gcc libc6-dev")
    if room() > ENOUGH:
        prerequisite.not_run("needs net.core.wmem_max to have room for no more than 40,000 rules")
    fits, more = room() // MOST, room() // LEAST + 1
    lines = [*map(inward, range(fits)), outward(5, 5, "allow"), outward(7, 7, "allow")]
    (tmp_path / "policies.batch").write_text("\n".join(lines))
    (tmp_path / "more.batch").write_text("\n".join(map(inward, range(fits, more))))
    (tmp_path / "config.toml").write_text(CONFIG)

    def run(script):
        done = subprocess.run(
            ["unshare", "-Urn", "bash", "-c", RUN + script],
            cwd=tmp_path,
            env={"UXFRM": str(uxfrm), "GATEWAY": str(Refusing(tmp_path, uxfrm).binary), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
        return done.stdout.split()

    return run


def test_what_needs_no_new_table_goes_on_when_there_is_no_room_for_one(answers):
    said = answers(f"""
passes() {{ nft list chain inet uxfrm-uxfrm0 in-main | grep -c 'ip saddr 10.64.1.0/24' || true; }}
"$UXFRM" xfrm -batch more.batch
echo parted; "$UXFRM" {outward(6, 6, "block")} && nft list chain inet uxfrm-uxfrm0 out-main | grep -o '10.200.0.[0-9]*'
echo default; "$UXFRM" xfrm policy setdefault in block 2>&1 | grep -o 'raise net.core.wmem_max'
"$UXFRM" xfrm policy getdefault | grep -o 'in:  accept'
echo added; "$UXFRM" xfrm policy add src 10.63.0.0/24 {WHERE} priority 99999 action block && echo yes
echo gone; passes; "$UXFRM" xfrm policy delete src 10.64.1.0/24 {WHERE}; passes
""")
    out = "10.200.0.5 10.200.0.6 10.200.0.7"
    assert said == f"parted {out} default raise net.core.wmem_max in: accept added yes gone 1 0".split()


def test_a_change_of_which_the_kernel_does_nothing_costs_the_others_nothing(answers):
    """It was out of memory for a moment: from then on every change was refused, those that would
    have made room as well."""
    new = f"policy add src 10.63.0.0/24 {WHERE} priority 99999 action block"
    said = answers(f"""
"$UXFRM" xfrm -batch more.batch
refuses() {{ printf "$1" | dd of=page conv=notrunc status=none; }}
refused() {{ refuses '\\001'; "$UXFRM" xfrm "$@" 2>&1 | grep -o 'Cannot allocate memory'; refuses '\\000'; }}
refused {new}
"$UXFRM" xfrm {new} && echo added
refused policy delete src 10.64.1.0/24 {WHERE}
"$UXFRM" xfrm policy delete src 10.64.1.0/24 {WHERE} && echo deleted
"$UXFRM" {outward(6, 6, "block")} && echo parted
nft list chain inet uxfrm-uxfrm0 in-main | grep -c 'ip saddr 10.6[34].[01].0/24'
""")
    memory = "Cannot allocate memory"
    assert said == f"{memory} added {memory} deleted parted 2".split()
