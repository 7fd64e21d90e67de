"""What `make packages` has made, beside what test_packages.py sees: the .rpm has the .deb's files, the
sums are right, and the image carries traffic with two capabilities and serves HTTP with none. Run by
`make test-packages`.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import time

import pytest

import patience
import prerequisite
import topology
import wire
from association import GCM_128, Association
from clean_root import LIBRESWAN, SYSTEMD, CleanRoot, commands
from gateway import configuration
from namespace import veth
from pluto import SECRET
from test_packages import swanctl_conf
from test_web import UnixConnection
from topology import HERE, THERE

PACKAGES = pathlib.Path(os.environ["UXFRM_PACKAGES"]).resolve()
NETS = "10.1.0.0/24", "10.2.0.0/24"
CAPABILITIES = ["CAP_NET_ADMIN", "CAP_NET_RAW"]


def output(*words, text=True, check=True, **options):
    return subprocess.run(words, check=check, stdout=subprocess.PIPE, text=text, **options).stdout


def only(pattern):
    (found,) = PACKAGES.glob(pattern)
    return found


def test_the_sums_are_those_of_the_files():
    assert output("sha256sum", "--check", "SHA256SUMS", cwd=PACKAGES).count(": OK") == 3


def test_the_rpm_has_the_files_of_the_deb():
    prerequisite.programs(rpm="rpm", rpm2cpio="rpm", cpio="cpio")
    listed = output("dpkg-deb", "--contents", only("*.deb")).splitlines()
    of_deb = {line.split()[5][1:]: line[1:10] for line in listed if line.startswith("-")}
    listed = output("rpm", "-qlvp", only("*.rpm")).splitlines()
    assert {line.split()[8]: line[1:10] for line in listed} == of_deb
    # It gives all and then fails: cargo-generate-rpm counts the payload's size otherwise.
    payload = output("rpm2cpio", only("*.rpm"), text=False, check=False)
    unpacked = output("cpio", "--list", "--quiet", text=False, input=payload).decode()
    assert {f"/{name.lstrip('./')}" for name in unpacked.splitlines()} == set(of_deb)
    names = {member.name.partition("/")[2] for member in tarfile.open(only("*.tar.gz")) if member.isfile()}
    assert {f"/{name}" for name in names} == set(of_deb)


class Container:
    """The image under runc, in a network namespace that is there."""

    def __init__(self, directory, namespace, words, ready, user=0, capabilities=(), volumes=()):
        directory.mkdir()
        self.name = f"{namespace.name}-{directory.name}"
        self.bundle = directory
        unpack(only("*.oci.tar"), directory / "rootfs")
        output("runc", "spec", "--bundle", directory)
        spec = json.loads((directory / "config.json").read_text())
        spec["process"]["args"] = ["/usr/bin/uxfrm", *words]
        spec["process"]["user"] = {"uid": user, "gid": user}
        spec["process"]["capabilities"] = {kind: list(capabilities) for kind in ("bounding", "effective", "permitted")}
        for place, (source, access) in volumes:
            spec["mounts"].append({"destination": place, "type": "bind", "source": str(source), "options": ["bind", access]})
        (directory / "config.json").write_text(json.dumps(self._with(spec, namespace)))
        self.log = open(directory / "log", "w+")
        self._runc = ["runc", "--root", directory / "state"]
        words = [*self._runc, "run", "--bundle", directory, self.name]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        patience.wait_for(lambda: ready in self.said(), self.said)

    @staticmethod
    def _with(spec, namespace):
        linux = spec["linux"]
        spec["process"]["terminal"] = False
        spec["root"]["readonly"] = False
        tun = {"path": "/dev/net/tun", "type": "c", "major": 10, "minor": 200, "fileMode": 0o666}
        linux["devices"] = [tun]
        linux["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        others = [kind for kind in linux["namespaces"] if kind["type"] not in ("network", "cgroup")]
        linux["namespaces"] = [*others, {"type": "network", "path": f"/run/netns/{namespace.name}"}]
        return spec

    def said(self):
        return (self.bundle / "log").read_text()

    def uxfrm(self, *words):
        return output(*self._runc, "exec", self.name, "/usr/bin/uxfrm", *words)

    def close(self):
        subprocess.run([*self._runc, "kill", self.name, "TERM"], check=False)
        self._process.wait(patience.SECONDS)
        self.log.close()


def unpack(image, root):
    """The layers of an OCI archive, the lowest first."""
    with tarfile.open(image) as archive:
        blob = lambda digest: archive.extractfile("blobs/" + digest.replace(":", "/"))
        index = json.load(archive.extractfile("index.json"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"]), mode="r|*") as files:
                files.extractall(root)


@pytest.fixture
def hosts():
    with topology.Hosts() as made:
        yield made


def test_the_image_carries_traffic_with_two_capabilities(uxfrm, hosts, tmp_path):
    prerequisite.programs(runc="runc", buildah="buildah")
    left, right = hosts.namespace("image"), hosts.namespace("peer")
    veth(left, "wire0", right, "wire0")
    topology.place(left, "wire0", HERE)
    topology.place(right, "wire0", THERE)
    association = Association(GCM_128, "tunnel", inner=4, outer=4)
    peer = hosts.gateway(uxfrm, right)
    peer.start(association.lines(THERE, HERE))
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "x.batch").write_text("\n".join(association.lines(HERE, THERE)) + "\n")
    text = configuration(1400, "x.batch", "auto").replace('sequences = "sequences"', "")
    (etc / "config.toml").write_text(text + '\n[status]\ngroup = "uxfrm-web"\n')
    run = ["run", "/etc/uxfrm/config.toml"]
    container = Container(tmp_path / "gateway", left, run, "uxfrm: ready", capabilities=CAPABILITIES, volumes=[("/etc/uxfrm", (etc, "ro"))])
    hosts.callback(container.close)
    left.ping(HERE.inner[4], THERE.inner[4])
    assert "XfrmInError" in container.uxfrm("stat")
    assert container.uxfrm("--version").startswith("uxfrm ")
    assert int(peer.statistics().get("XfrmInNoStates", 0)) == 0
    # A second container of the same network, as a user of the image and without any capability.
    user = web_user(container)
    place = tmp_path / "socket"
    place.mkdir()
    os.chown(place, user, user)
    serve = ["web", "--socket", "/run/uxfrm-web/web.sock"]
    web = Container(tmp_path / "web", left, serve, "listening at", user, volumes=[("/run/uxfrm-web", (place, "rw"))])
    hosts.callback(web.close)
    with contextlib.closing(UnixConnection(place / "web.sock")) as connection:
        connection.request("GET", "/api/v1/status")
        answer = connection.getresponse()
        told = json.loads(answer.read())
    assert answer.status == 200 and told["totals"]["up"] == 1, told


def web_user(container):
    """The number of the image's user."""
    lines = (container.bundle / "rootfs/etc/passwd").read_text().splitlines()
    return next(int(line.split(":")[2]) for line in lines if line.startswith("uxfrm-web:"))


def by_the_guide(root):
    """The three commands at the top of docs/install.md; how many seconds they take."""
    package = only("*.deb")
    shutil.copy(package, root.path / "root" / package.name)
    begun = time.monotonic()
    root.run("sh", "-euc", f"cd /root && apt install ./{package.name}")
    assert "ran systemctl start strongswan.service" in root.run("uxfrm", "setup", "strongswan")
    root.run("uxfrm", "doctor", check=False)
    return time.monotonic() - begun


def test_setup_under_systemd_and_what_may_happen_then(hosts, capsys):
    """Also a crash, a new package and a removal. How long it took is printed, and not asserted."""
    left, right = hosts.namespace("left"), hosts.namespace("right")
    veth(left, "wire0", right, "wire0")
    ends = (left, "10.9.0.1", "10.1.0.1"), (right, "10.9.0.2", "10.2.0.1")
    roots, seconds = [], []
    for (namespace, outer, inner), (_, remote, _), nets in zip(ends, ends[::-1], (NETS, NETS[::-1])):
        namespace.address("wire0", f"{outer}/24")
        namespace.address("lo", f"{inner}/32")
        namespace.ip("route add default dev wire0")
        root = CleanRoot(namespace, SYSTEMD)
        hosts.callback(root.close)
        root.block_kernel_esp()
        (root.path / "etc/swanctl/conf.d/net.conf").write_text(swanctl_conf(outer, remote, nets))
        root.boot()
        seconds.append(by_the_guide(root))
        roots.append(root)
    # The kernel of the tests has no AppArmor, but its profile is one with what setup has added.
    profile = "usr.sbin.charon-systemd"
    assert "abstractions/uxfrm" in (roots[0].path / "etc/apparmor.d/local" / profile).read_text()
    roots[0].run("apparmor_parser", "--skip-kernel-load", "--skip-cache", f"/etc/apparmor.d/{profile}")
    between = hosts.wire(left, "wire0")
    begun = time.monotonic()
    left.ping("10.1.0.1", "10.2.0.1")
    up = time.monotonic() - begun
    with capsys.disabled():
        print(f"\napt install, uxfrm setup strongswan, uxfrm doctor: {seconds[0]:.1f} s; then the first packets through the tunnel: {up:.1f} s")
    between.seen()
    assert "has taken over as process" in roots[0].install(only("*.deb"))
    right.ping("10.2.0.1", "10.1.0.1")
    wire.assert_only("esp", between.seen())

    pid = main_process(roots[0], "uxfrm")
    roots[0].run("sh", "-c", f"kill -KILL {pid}")
    patience.wait_for(lambda: main_process(roots[0], "uxfrm") not in ("0", pid) and main_process(roots[0], "strongswan") != "0")
    patience.wait_for(lambda: "net" in roots[0].run("swanctl", "--list-conns", check=False))
    left.ping("10.1.0.1", "10.2.0.1")
    wire.assert_no_plaintext(between.seen())

    roots[0].run("dpkg", "--remove", "uxfrm")
    assert main_process(roots[0], "strongswan") != "0"
    assert roots[0].run("nft", "list", "tables") == ""
    failed = roots[0].run("systemctl", "list-units", "--failed", "--plain", "--no-legend")
    assert failed == "", failed


def main_process(root, unit):
    return root.run("systemctl", "show", "--property=MainPID", "--value", unit).strip()


LIBRESWAN_CONF = """
conn net
    ikev2=insist
    authby=secret
    left=10.9.0.1
    leftsubnet=10.1.0.0/24
    right=10.9.0.2
    rightsubnet=10.2.0.0/24
    auto=ondemand
"""


def test_libreswan_has_a_tunnel_again(hosts):
    left, right = hosts.namespace("left"), hosts.namespace("right")
    veth(left, "wire0", right, "wire0")
    for namespace, outer, inner in ((left, "10.9.0.1", "10.1.0.1"), (right, "10.9.0.2", "10.2.0.1")):
        namespace.address("wire0", f"{outer}/24")
        namespace.address("lo", f"{inner}/32")
        namespace.ip("route add default dev wire0")
        start_libreswan(hosts, namespace)
    between = hosts.wire(left, "wire0")
    left.ping("10.1.0.1", "10.2.0.1")
    wire.assert_no_plaintext(between.seen())
    right.ping("10.2.0.1", "10.1.0.1")
    wire.assert_only("esp", between.seen())


def start_libreswan(hosts, namespace):
    """By the commands of its unit with the drop-in."""
    root = CleanRoot(namespace, LIBRESWAN)
    hosts.callback(root.close)
    root.install(only("*.deb"))
    root.block_kernel_esp()
    root.run("uxfrm", "setup", "libreswan")
    (root.path / "etc/ipsec.d/net.conf").write_text(LIBRESWAN_CONF)
    (root.path / "etc/ipsec.d/net.secrets").write_text(f': PSK "{SECRET}"\n')
    root.start_gateway()
    drop_in = root.drop_in("ipsec.service")
    for words in commands(drop_in, "ExecStartPre"):
        root.run(*words)
    pluto = root.start(*commands(drop_in, "ExecStart")[-1], "--stderrlog")
    ready = lambda: root.ask("ipsec", "auto", "--ready").returncode == 0
    patience.wait_for(ready, pluto.log.read_text)
    patience.wait_for(lambda: "10.2.0.0/24" in root.run("uxfrm", "xfrm", "policy"), pluto.log.read_text)
