"""The packages in a clean Debian: what they lay, what setup does there, and what they leave behind."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import patience
import prerequisite
import topology
import wire
from clean_root import CleanRoot, commands
from namespace import veth

RHEL_9 = (2, 34)
UNITS = prerequisite.REPOSITORY / "examples" / "systemd"  # test_guard_boot.py verifies them
ROOT_ONLY = {
    "usr/bin/uxfrm": 0o755,
    "usr/lib/uxfrm/maintain": 0o755,
    "usr/lib/uxfrm/uxfrm-fleet": 0o755,
    "usr/lib/uxfrm/uxfrm-web": 0o755,
    "usr/lib/uxfrm/libuxfrm_redirect.so": 0o644,
}


@pytest.fixture(scope="module")
def packages(uxfrm):
    """The packages of the binary under test."""
    prerequisite.programs(mmdebstrap="mmdebstrap", strip="gcc", git="git")
    with tempfile.TemporaryDirectory(prefix="uxfrm-packages-") as out:
        made = ["scripts/packages", "deb", "tar"]
        done = subprocess.run(
            made,
            cwd=prerequisite.REPOSITORY,
            env=os.environ | {"UXFRM": str(uxfrm), "OUT": out},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        print(done.stdout)
        yield pathlib.Path(out)


@pytest.fixture
def hosts():
    with topology.Hosts() as made:
        yield made


@pytest.fixture
def root(hosts, packages):
    return clean_root(hosts, hosts.namespace("root"))


def clean_root(hosts, namespace):
    made = CleanRoot(namespace)
    hosts.callback(made.close)
    return made


def deb(packages):
    return next(packages.glob("*.deb"))


def test_the_package_comes_and_goes_without_a_trace(root, packages):
    before = root.files()
    root.install(deb(packages))
    for path, mode in ROOT_ONLY.items():
        found = (root.path / path).stat()
        assert (found.st_mode & 0o7777, found.st_uid) == (mode, 0), path
    configuration = (root.path / "etc/uxfrm").stat()
    group = int(root.run("getent", "group", "uxfrm").split(":")[2])
    assert (configuration.st_mode & 0o7777, configuration.st_gid) == (0o750, group)
    version = re.search(r'^version = "(.*)"$', (prerequisite.REPOSITORY / "Cargo.toml").read_text(), re.M)[1]
    assert root.run("uxfrm", "--version") == f"uxfrm {version}\n"
    assert "--token-file" in root.run("uxfrm", "web", "--help")
    assert root.run("/usr/lib/uxfrm/uxfrm-web", "--version") == f"uxfrm-web {version}\n"
    assert root.run("getent", "passwd", "uxfrm-web").endswith(":/usr/sbin/nologin\n")
    for page in ("uxfrm", "uxfrm-setup", "uxfrm-doctor"):
        assert (root.path / f"usr/share/man/man8/{page}.8.gz").is_file()
    assert (root.path / "usr/share/man/man5/uxfrm.toml.5.gz").is_file()
    units = (root.path / "usr/lib/systemd/system").glob("uxfrm*")
    assert sorted(path.name for path in units) == sorted(path.name for path in UNITS.iterdir())
    assert not (root.path / "etc/systemd/system/multi-user.target.wants/uxfrm.service").exists()
    root.run("dpkg", "--verify", "uxfrm")
    root.run("dpkg", "--remove", "uxfrm")
    assert (root.path / "etc/uxfrm/uxfrm.toml.example").exists(), "configuration stays until purge"
    (root.path / "var/lib/uxfrm/gateway").mkdir(parents=True)
    root.run("dpkg", "--purge", "uxfrm")
    assert root.files() == before


def test_a_new_package_takes_over_and_a_removal_refuses_nothing(root, packages):
    root.install(deb(packages))
    (root.path / "etc/uxfrm/uxfrm.toml").write_text('[xfrm]\nbatch = ["x.batch"]\n')
    (root.path / "etc/uxfrm/x.batch").write_text("xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out action block\n")
    gateway = root.start("uxfrm", "run", "/etc/uxfrm/uxfrm.toml")
    patience.wait_for(lambda: "uxfrm: ready" in gateway.log.read_text(), gateway.log.read_text)
    assert "has taken over as process" in root.install(deb(packages))
    gateway.terminate()
    gateway.wait(patience.SECONDS)
    assert "uxfrm" in root.run("nft", "list", "tables")
    root.run("dpkg", "--remove", "uxfrm")
    assert root.run("nft", "list", "tables") == ""
    # Its keys could be used again: so what is known of their numbers stays.
    root.run("dpkg", "--purge", "uxfrm")
    assert (root.path / "etc/uxfrm/x.batch").exists()
    assert (root.path / "var/lib/uxfrm").is_dir()
    assert "uxfrm" not in root.run("ip", "rule") and "30000" not in root.run("ip", "rule")


SCRIPTS = prerequisite.REPOSITORY / "packaging"
DEB, RPM = "deb/postrm", "rpm/postun"
NUMBERS = {"var/lib/uxfrm/gateway/sequences": "sent 1f 10.0.0.2 0x1 0/0 4194304\n"}
WINDOWS = {"run/uxfrm/var-lib-uxfrm-gateway/received.windows": "uxfrmwit"}
HELD = {"var/lib/uxfrm/gateway/policies": ""}


@pytest.mark.parametrize(
    "script, action, there, stays",
    [
        (DEB, "purge", {}, set()),
        (DEB, "purge", HELD, set()),
        (DEB, "purge", {"var/lib/uxfrm/gateway/": ""}, set()),
        # Whose keys they are cannot be seen from outside: by a configuration elsewhere and units of
        # any form and place, linked ones too, or by none.
        (DEB, "purge", NUMBERS, NUMBERS),
        (DEB, "purge", NUMBERS | HELD, NUMBERS | HELD),
        (DEB, "purge", NUMBERS | {"srv/uxfrm.toml": ""}, NUMBERS.keys() | {"srv/uxfrm.toml"}),
        (DEB, "purge", {"var/lib/uxfrm/netns-blue/sequences.new": ""}, {"var/lib/uxfrm/netns-blue/sequences.new"}),
        (DEB, "purge", {"var/lib/uxfrm/a file of mine": ""}, {"var/lib/uxfrm/a file of mine"}),
        (DEB, "purge", {"etc/uxfrm/static.batch": "keys"}, {"etc/uxfrm/static.batch"}),
        (DEB, "purge", NUMBERS | WINDOWS, NUMBERS | WINDOWS),
        (DEB, "purge", {"run/uxfrm/lock": ""}, set()),
        (DEB, "remove", NUMBERS | WINDOWS | {"etc/uxfrm/uxfrm.toml": ""}, NUMBERS.keys() | WINDOWS | {"etc/uxfrm/uxfrm.toml"}),
        (DEB, "remove", NUMBERS | {"run/uxfrm/4026531833.lock": ""}, NUMBERS),
        (DEB, "upgrade", NUMBERS | WINDOWS | {"run/uxfrm/lock": ""}, NUMBERS.keys() | WINDOWS | {"run/uxfrm/lock"}),
        (RPM, "0", NUMBERS | WINDOWS, NUMBERS | WINDOWS),
        (RPM, "0", NUMBERS | {"run/uxfrm/lock": ""}, NUMBERS),
        (RPM, "1", NUMBERS | {"run/uxfrm/lock": ""}, NUMBERS.keys() | {"run/uxfrm/lock"}),
    ],
)
def test_what_a_removal_forgets(tmp_path, script, action, there, stays):
    for name, text in there.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text(text)
    text = re.sub(r"(?<![\w/])/(etc|var|run)/", rf"{tmp_path}/\1/", (SCRIPTS / script).read_text())
    done = subprocess.run(["sh", "-c", text, script, action], capture_output=True, text=True)
    assert done.returncode == 0, done
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(stays), done
    told = "stays, with the sequence numbers" in done.stderr
    assert told == (action == "purge" and any(name.startswith("var/lib") for name in left)), done


def test_what_a_removal_can_not_read_stays(tmp_path):
    """A directory that can't be looked into, and a link to another disk."""
    (tmp_path / "disk/gateway").mkdir(parents=True)
    (tmp_path / "disk/gateway/sequences").write_text("sent")
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "var/lib/uxfrm").symlink_to(tmp_path / "disk")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "find").write_text("#!/bin/sh\nexit 1\n")
    (programs / "find").chmod(0o755)
    text = re.sub(r"(?<![\w/])/(etc|var|run)/", rf"{tmp_path}/\1/", (SCRIPTS / DEB).read_text())
    for path in (os.environ["PATH"], f"{programs}:{os.environ['PATH']}"):
        subprocess.run(["sh", "-c", text, DEB, "purge"], check=True, env=os.environ | {"PATH": path})
        assert (tmp_path / "var/lib/uxfrm/gateway/sequences").exists(), path


def test_a_purge_keeps_the_numbers_of_a_configuration_elsewhere(root, packages):
    root.install(deb(packages))
    configuration = root.path / "srv/uxfrm.toml"
    configuration.write_text('[xfrm]\nbatch = ["x.batch"]\n')
    state = "proto esp spi 0x1 mode tunnel reqid 1 aead 'rfc4106(gcm(aes))'"
    key = "0x" + "17" * 20
    line = f"xfrm state add src 192.0.2.1 dst 192.0.2.2 {state} {key} 128\n"
    (root.path / "srv/x.batch").write_text(line)
    gateway = root.start("uxfrm", "run", "/srv/uxfrm.toml")
    patience.wait_for(lambda: "uxfrm: ready" in gateway.log.read_text(), gateway.log.read_text)
    gateway.terminate()
    gateway.wait(patience.SECONDS)
    stores = lambda: {path.read_text().strip("\0") for path in root.path.glob("var/lib/uxfrm/*/sequences")}
    before = stores()
    assert any(re.search("^sent ", text, re.M) for text in before), before
    told = root.run("dpkg", "--purge", "uxfrm")
    assert stores() == before, told


def test_the_tarball_runs_where_it_is_unpacked(root, packages):
    subprocess.run(["tar", "-C", root.path / "opt", "-xf", next(packages.glob("*.tar.gz"))], check=True)
    (place,) = root.path.glob("opt/uxfrm-*")
    program = f"/opt/{place.name}/usr/bin/uxfrm"
    assert root.run(program, "--version").startswith("uxfrm ")
    assert "no uxfrm runs" in root.run(program, "exec", "--", "true", check=False)
    refused = root.run(program, "web", "--socket", "/run/web.sock", "--user", "root", check=False)
    assert "uxfrm-web: root is root, and root does not serve" in refused


def test_doctor_names_the_line_that_blocks_the_kernels_esp(root, packages):
    root.install(deb(packages))
    root.block_kernel_esp()
    done = root.ask("uxfrm", "doctor", "-j")
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode in (1, 2)
    assert "`install esp4 /bin/false` in /etc/modprobe.d/cve.conf:2" in found["kernel ESP"]["found"]
    assert found["kernel ESP"]["mend"] == "uxfrm setup strongswan"
    assert found["IKE daemon"]["severity"] == "warn" and found["TUN"]["severity"] == "ok"
    root.run("uxfrm", "setup", "strongswan")
    again = {check["check"]: check for check in json.loads(root.ask("uxfrm", "doctor", "-j").stdout)["checks"]}
    assert again["kernel ESP"]["severity"] == again["IKE daemon"]["severity"] == "ok"


class Site:
    """One end: a clean root with the package and a blocked kernel, set up by the guide's words."""

    def __init__(self, root, package, local, remote, nets):
        self.root = root
        root.install(package)
        root.block_kernel_esp()
        self.said = root.run("uxfrm", "setup", "strongswan")
        (root.path / "etc/swanctl/conf.d/net.conf").write_text(swanctl_conf(local, remote, nets))
        self.gateway = self.charon = None

    def start(self):
        """As systemd would: the gateway's unit, then the daemon's with its drop-in."""
        self.gateway = self.root.start_gateway()
        self.charon = self.root.start(*commands(self.root.drop_in("strongswan.service"), "ExecStart")[-1])
        loads = lambda: self.root.ask("swanctl", "--load-all", "--noprompt").returncode == 0
        patience.wait_for(loads, self.charon.log.read_text)

    def stop(self):
        for process in (self.charon, self.gateway):
            process.terminate()
            process.wait(patience.SECONDS)


def swanctl_conf(local, remote, nets):
    return f"""
connections {{ peer {{ version = 2
  local_addrs = {local}
  remote_addrs = {remote}
  local {{ auth = psk }}
  remote {{ auth = psk }}
  children {{ net {{
    local_ts = {nets[0]}
    remote_ts = {nets[1]}
    start_action = trap }} }} }} }}
secrets {{ ike {{ secret = swordfish }} }}
"""


def test_an_administrator_whose_kernel_has_no_esp_has_a_tunnel_again(hosts, packages):
    left, right = hosts.namespace("left"), hosts.namespace("right")
    veth(left, "wire0", right, "wire0")
    ends = (left, "10.9.0.1", "10.1.0.1"), (right, "10.9.0.2", "10.2.0.1")
    for namespace, outer, inner in ends:
        namespace.address("wire0", f"{outer}/24")
        namespace.address("lo", f"{inner}/32")
        namespace.ip("route add default dev wire0")
    nets = "10.1.0.0/24", "10.2.0.0/24"
    sites = [
        Site(clean_root(hosts, left), deb(packages), "10.9.0.1", "10.9.0.2", nets),
        Site(clean_root(hosts, right), deb(packages), "10.9.0.2", "10.9.0.1", nets[::-1]),
    ]
    before = sites[0].root.files()
    for site in sites:
        assert "wrote /etc/systemd/system/strongswan.service.d/uxfrm.conf" in site.said
        site.start()
    between = hosts.wire(left, "wire0")
    left.ping("10.1.0.1", "10.2.0.1")
    wire.assert_no_plaintext(between.seen())
    right.ping("10.2.0.1", "10.1.0.1")
    wire.assert_only("esp", between.seen())
    assert "ESTABLISHED" in sites[0].root.run("swanctl", "--list-sas")
    for site in sites:
        site.stop()
    undone = sites[0].root.run("uxfrm", "setup", "--undo")
    assert "removed /etc/uxfrm/uxfrm.toml" in undone and "ran uxfrm clean" in undone
    gone = before - sites[0].root.files()
    assert {"etc/uxfrm/uxfrm.toml", "etc/uxfrm/setup.json"} <= gone
    # A package that goes has the daemon start without it.
    assert "removed /etc/uxfrm/uxfrm.toml" in sites[1].root.run("dpkg", "--remove", "uxfrm")
    assert not (sites[1].root.path / "etc/systemd/system/strongswan.service.d").exists()
    assert sites[1].root.run("nft", "list", "tables") == ""

def test_static_keys_carry_traffic_as_they_are_written(hosts, packages):
    left, right = hosts.namespace("left"), hosts.namespace("right")
    veth(left, "wire0", right, "wire0")
    roots = []
    for namespace, outer, inner in ((left, "192.0.2.1", "10.1.0.1"), (right, "192.0.2.2", "10.2.0.1")):
        namespace.address("wire0", f"{outer}/24")
        namespace.address("lo", f"{inner}/32")
        namespace.ip("route add default dev wire0")
        roots.append(clean_root(hosts, namespace))
        roots[-1].install(deb(packages))
    here, there = roots
    here.run("uxfrm", "setup", "static", "--local=192.0.2.1", "--peer=192.0.2.2", "--local-net=10.1.0.0/24", "--peer-net=10.2.0.0/24")
    shutil.copytree(here.path / "etc/uxfrm/peer", there.path / "etc/uxfrm", dirs_exist_ok=True)
    assert (here.path / "etc/uxfrm/static.batch").stat().st_mode & 0o007 == 0
    for root in roots:
        root.run("uxfrm", "check", "/etc/uxfrm/uxfrm.toml")
        gateway = root.start("uxfrm", "run", "/etc/uxfrm/uxfrm.toml")
        patience.wait_for(lambda: "uxfrm: ready" in gateway.log.read_text(), gateway.log.read_text)
    between = hosts.wire(left, "wire0")
    left.ping("10.1.0.1", "10.2.0.1")
    wire.assert_only("esp", between.seen())


def test_binary_and_library_run_with_the_c_library_of_rhel_9(uxfrm):
    prerequisite.programs(objdump="gcc")
    for path in (uxfrm, uxfrm.with_name("uxfrm-web"), uxfrm.with_name("uxfrm-fleet"), uxfrm.with_name("libuxfrm_redirect.so")):
        symbols = subprocess.run(["objdump", "-T", path], check=True, stdout=subprocess.PIPE, text=True).stdout
        versions = {tuple(map(int, found.split("."))): line for line in symbols.splitlines() for found in re.findall(r"GLIBC_([0-9.]+)", line)}
        assert versions and max(versions) <= RHEL_9, versions[max(versions)]
