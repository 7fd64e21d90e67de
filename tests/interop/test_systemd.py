"""The package under a systemd that runs: its units start, tell when they are ready, reload, come back
and hand sockets over; entries of the journal have fields.

First in namespaces of this machine. Then in a guest with a kernel of its own, which has AppArmor and
no ESP: there the daemon's profile is enforced, with what setup adds and without.
"""

import json
import re

import pytest

import patience
import prerequisite
import topology
from clean_root import SYSTEMD, CleanRoot
from systemd_guest import SystemdGuest
from test_packages import deb, packages, swanctl_conf  # noqa: F401: a fixture

NEIGHBOUR = """
ip netns add peer
ip link add wire0 type veth peer name wire0 netns peer
for place in "192.0.2.1 10.1.0.1" "192.0.2.2 10.2.0.1 -n peer"; do
    set -- $place
    outer=$1 inner=$2
    shift 2
    ip $* address add $outer/24 dev wire0
    ip $* address add $inner/32 dev lo
    ip $* link set lo up
    ip $* link set wire0 up
    ip $* route add default dev wire0
done
"""
STATIC = """
uxfrm setup static --local=192.0.2.1 --peer=192.0.2.2 --local-net=10.1.0.0/24 --peer-net=10.2.0.0/24
cd /etc/uxfrm
mv peer/static.batch peer.batch
sed s/static.batch/peer.batch/ peer/uxfrm.toml >peer.toml
for file in uxfrm peer; do printf '\\n[status]\\ngroup = "uxfrm-web"\\n' >>$file.toml; done
chgrp uxfrm *.toml *.batch
chmod 0640 *.toml *.batch
"""
IN_PEER = ("ip", "netns", "exec", "peer")
PROFILE = "usr.sbin.charon-systemd"
LOCAL = f"/etc/apparmor.d/local/{PROFILE}"


@pytest.fixture
def hosts():
    with topology.Hosts() as made:
        yield made


@pytest.fixture
def root(hosts, packages):  # noqa: F811
    """systemd in namespaces of this machine."""
    made = CleanRoot(hosts.namespace("systemd"), SYSTEMD)
    hosts.callback(made.close)
    made.boot()
    made.install(deb(packages))
    return made


@pytest.fixture
def guest(hosts, packages):  # noqa: F811
    """systemd in a guest with a kernel of its own."""
    prerequisite.qemu_peer()
    prerequisite.programs(mke2fs="e2fsprogs")
    made = SystemdGuest(hosts.namespace("guest"), deb(packages))
    hosts.callback(made.close)
    made.run("dpkg", "--install", f"/root/{deb(packages).name}")
    return made


def test_units_in_namespaces(root, capsys):
    carry_traffic(root)
    notice_the_end_of_a_gateway(root)
    serve_http(root)
    tell_the_journal(root)
    end(root)


def test_units_and_apparmor_in_a_guest(guest, capsys):
    with capsys.disabled():
        print(f"\nthe guest was up after {guest.boot_seconds:.0f} s")
    confine_the_daemon(guest)
    guest.run("uxfrm", "setup", "--undo")
    carry_traffic(guest)
    notice_the_end_of_a_gateway(guest)
    serve_http(guest)
    tell_the_journal(guest)
    end(guest)


def main_process(machine, unit):
    return machine.run("systemctl", "show", "--property=MainPID", "--value", unit).strip()


def script(machine, text):
    return machine.run("sh", "-euc", text)


def carry_traffic(machine):
    """Two gateways with static keys, by `uxfrm.service` and `uxfrm@peer.service`."""
    # It holds the port for ESP in UDP, and is not under `uxfrm exec`.
    machine.run("systemctl", "disable", "--now", "strongswan")
    script(machine, NEIGHBOUR)
    script(machine, STATIC)
    for unit, words in (("uxfrm", ()), ("uxfrm@peer", IN_PEER)):
        started = machine.ask("systemctl", "start", unit)
        assert started.returncode == 0, machine.run("journalctl", "--no-pager", "--lines=40")
        # It has told that it is ready, so it answers.
        told = json.loads(machine.run(*words, "uxfrm", "stat", "-j"))
        assert told["XfrmInError"] == 0
        assert machine.run("systemctl", "is-active", unit).strip() == "active"
    ping(machine)
    status = json.loads(machine.run("uxfrm", "status", "-j"))
    assert status["totals"]["up"] == 1 and status["totals"]["sent"]["packets"] > 0, status["totals"]
    facts = machine.run("cat", f"/proc/{status['gateway']['pid']}/status")
    user = machine.run("id", "--user", "uxfrm").strip()
    supervisor = main_process(machine, "uxfrm")
    assert re.search(rf"^PPid:\t{supervisor}$", facts, re.M) and re.search(rf"^Uid:\t{user}\t", facts, re.M), facts
    assert re.search(r"^NoNewPrivs:\t1", facts, re.M), facts
    reload(machine)


def reload(machine):
    pid = main_process(machine, "uxfrm")
    script(machine, "echo xfrm policy add src 10.1.0.0/24 dst 10.9.0.0/24 dir out action block >>/etc/uxfrm/static.batch")
    machine.run("systemctl", "reload", "uxfrm")
    assert "10.9.0.0/24" in machine.run("uxfrm", "xfrm", "policy")
    assert main_process(machine, "uxfrm") == pid
    script(machine, "echo nonsense >>/etc/uxfrm/static.batch")
    assert machine.ask("systemctl", "reload", "uxfrm").returncode != 0, "what can't be read"
    assert main_process(machine, "uxfrm") == pid
    script(machine, "sed -i '$d' /etc/uxfrm/static.batch")


def ping(machine):
    """One answer of several: after a crash the numbers leap, which costs the first packet."""
    pinged = machine.ask("ping", "-c", "5", "-i", "0.5", "-W", "10", "-I", "10.1.0.1", "10.2.0.1")
    assert pinged.returncode == 0, machine.run("uxfrm", "drops") + machine.run(*IN_PEER, "uxfrm", "drops")


def notice_the_end_of_a_gateway(machine):
    """systemd starts it anew; the other end takes its numbers."""
    pid = main_process(machine, "uxfrm")
    script(machine, f"kill -KILL {pid}")
    patience.wait_for(lambda: main_process(machine, "uxfrm") not in ("0", pid))
    patience.wait_for(lambda: machine.run("systemctl", "is-active", "uxfrm", check=False).strip() == "active")
    assert machine.run("systemctl", "show", "--property=NRestarts", "--value", "uxfrm").strip() == "1"
    ping(machine)


def serve_http(machine):
    """Each by its socket, with the first connection."""
    for unit, words, path in (("uxfrm-web", (), "web.sock"), ("uxfrm-web@peer", IN_PEER, "web-peer.sock")):
        machine.run("systemctl", "enable", "--now", f"{unit}.socket")
        assert machine.run("systemctl", "is-active", unit, check=False).strip() == "inactive"
        ask = ["curl", "--silent", "--fail-with-body", "--unix-socket", f"/run/uxfrm/{path}", "http://localhost/api/v1/status"]
        told = json.loads(machine.run(*ask))
        assert told["gateway"]["pid"] == json.loads(machine.run(*words, "uxfrm", "status", "-j"))["gateway"]["pid"]
        assert machine.run("systemctl", "is-active", unit).strip() == "active"
        pid = main_process(machine, unit)
        facts = machine.run("cat", f"/proc/{pid}/status")
        assert re.search(r"^CapBnd:\t0+$", facts, re.M) and re.search(r"^Seccomp:\t2", facts, re.M), facts
        script(machine, f"kill -KILL {pid}")
        assert patience.wait_for(lambda: machine.run(*ask, check=False).startswith("{") or None), "it comes again"
        refused = machine.ask("setpriv", "--reuid=nobody", "--clear-groups", *ask)
        assert refused.returncode == 7, refused


def tell_the_journal(machine):
    script(machine, """
        mkdir -p /etc/systemd/system/uxfrm.service.d
        printf '[Service]\\nEnvironment=UXFRM_LOG=journald\\n' >/etc/systemd/system/uxfrm.service.d/log.conf
        systemctl daemon-reload
        systemctl restart uxfrm
        uxfrm xfrm state add src 192.0.2.1 dst 192.0.2.9 proto esp spi 0x4711 aead 'rfc4106(gcm(aes))' 0x0102030405060708090a0b0c0d0e0f1011121314 128
    """)
    asked = ["journalctl", "--output=json", "--unit=uxfrm", "UXFRM_SPI=0x00004711"]
    lines = patience.wait_for(lambda: machine.run(*asked, check=False).splitlines(), lambda: machine.run("journalctl", "--unit=uxfrm"))
    entry = json.loads(lines[-1])
    assert entry["UXFRM_DESTINATION"] == "192.0.2.9" and entry["SYSLOG_IDENTIFIER"] == "uxfrm", entry
    assert entry["_SYSTEMD_UNIT"] == "uxfrm.service"
    assert "0102030405060708" not in machine.run("journalctl", "--output=json")


def end(machine):
    machine.run("dpkg", "--remove", "uxfrm")
    assert machine.run("nft", "list", "tables").strip() == ""
    units = machine.run("systemctl", "list-units", "--plain", "--no-legend", "--state=active,failed", "uxfrm*")
    assert units.strip() == "", units


def confine_the_daemon(machine):
    """charon under its profile, which is enforced, on a kernel without ESP."""
    assert machine.run("cat", "/sys/module/apparmor/parameters/enabled").strip() == "Y"
    block = "printf 'install esp4 /bin/false\\ninstall esp6 /bin/false\\n' >/etc/modprobe.d/cve.conf"
    script(machine, block)
    script(machine, f"cat >/etc/swanctl/conf.d/net.conf <<'END'{swanctl_conf('192.0.2.1', '192.0.2.2', ('10.1.0.0/24', '10.2.0.0/24'))}END\n")
    # Debian has it only complain; Ubuntu enforces the same profile.
    script(machine, f"sed -i s/complain,// /etc/apparmor.d/{PROFILE}")
    done = machine.ask("uxfrm", "setup", "strongswan")
    assert done.returncode == 0, done.stdout + machine.run("journalctl", "--no-pager", "--unit=uxfrm")
    assert "abstractions/uxfrm" in machine.run("cat", LOCAL)
    assert_confined_and_working(machine)
    doctor = {check["check"]: check for check in json.loads(machine.ask("uxfrm", "doctor", "-j").stdout)["checks"]}
    assert doctor["AppArmor"]["severity"] == "ok", doctor["AppArmor"]
    # What neither the profile nor the snippet names is denied: the gateway's configuration, and to write to its library.
    confined = ["aa-exec", "-p", "/usr/sbin/charon-systemd", "--"]
    for words in (("cat", "/etc/uxfrm/uxfrm.toml"), ("cp", "/etc/passwd", "/usr/lib/uxfrm/libuxfrm_redirect.so")):
        denied = machine.ask(*confined, *words)
        assert denied.returncode != 0 and "Permission denied" in denied.stdout, denied
    assert machine.ask(*confined, "cmp", "/usr/lib/uxfrm/libuxfrm_redirect.so", "/usr/lib/uxfrm/libuxfrm_redirect.so").returncode == 0
    without_the_snippet(machine)
    kernel = machine.run("dmesg")
    assert re.search(r'apparmor="DENIED" operation="open" profile="/usr/sbin/charon-systemd" name="/run/uxfrm/probe"', kernel), kernel[-2000:]
    machine.run("systemctl", "restart", "strongswan")
    assert_confined_and_working(machine)


def assert_confined_and_working(machine):
    loads = lambda: machine.ask("swanctl", "--load-all", "--noprompt").returncode == 0
    patience.wait_for(loads, lambda: machine.run("journalctl", "--unit=strongswan"), 3 * patience.SECONDS)
    pid = main_process(machine, "strongswan")
    assert machine.run("cat", f"/proc/{pid}/attr/current").strip() == "/usr/sbin/charon-systemd (enforce)"
    assert "libuxfrm_redirect.so" in machine.run("cat", f"/proc/{pid}/maps")
    assert "dst 10.2.0.0/24" in machine.run("uxfrm", "xfrm", "policy"), "charon's trap is the gateway's"


def without_the_snippet(machine):
    """The counter-test: the same profile keeps the daemon from the gateway's sockets that are files. Abstract ones
    Debian's kernel lets pass."""
    script(machine, "echo open >/run/uxfrm/probe")
    asks = ["aa-exec", "-p", "/usr/sbin/charon-systemd", "--", "cat", "/run/uxfrm/probe"]
    assert machine.run(*asks).strip() == "open"
    script(machine, f"cp -p {LOCAL} /root/local && sed -i '/abstractions.uxfrm/d' {LOCAL} && apparmor_parser -r /etc/apparmor.d/{PROFILE}")
    assert "Permission denied" in machine.ask(*asks).stdout
    script(machine, f"cp -p /root/local {LOCAL} && apparmor_parser -r /etc/apparmor.d/{PROFILE} && rm /run/uxfrm/probe")
