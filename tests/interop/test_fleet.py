"""`uxfrm fleet` with Debian's etcd: commands, agents beside gateways that only say what is done,
and an etcd that is away, compacted, put back from a backup, or asks for TLS and a user.
"""

import json
import os
import pathlib
import re
import shutil

import pytest

import fleet
import patience
import prerequisite
from namespace import Namespace

KEY = "0x" + "5a" * 20
FILE = f"""
[pools.default]
lines = "ip xfrm policy add src 10.9.0.0/24 dst 10.8.0.0/24 dir out action block priority 9000\\n"
"""


def tunnel(number, key=KEY):
    line = f"ip xfrm state add src 10.0.0.{number} dst 10.1.0.1 proto esp spi {number} dir in replay-window 64 aead rfc4106(gcm(aes)) {key} 128"
    return f'\n[tunnels.t{number}]\nlines = """\n{line}\n"""\n'


@pytest.fixture(scope="module")
def program(uxfrm):
    prerequisite.programs(etcd="etcd-server", etcdctl="etcd-client")
    return pathlib.Path(uxfrm).with_name("uxfrm-fleet")


@pytest.fixture
def place(tmp_path):
    """A namespace for all, and a directory that only root writes to."""
    space = Namespace(f"fleet-{os.getpid()}")
    yield space, tmp_path
    space.delete()


class Fleet:
    """An etcd, a fleet and its hosts."""

    def __init__(self, program, place, more=(), etcd=None):
        self.program = program
        self.namespace, self.directory = place
        self.etcd = etcd or fleet.Etcd(self.namespace, self.directory / "etcd")
        self.hosts = []
        self.first = fleet.Host(program, self.namespace, self.directory / "first", "first", 0)
        self.key = self.directory / "fleet.key"
        self.first.fleet("init", "ours", "--etcd", self.etcd.url, "--key-file", str(self.key), *more)

    def host(self, name, port):
        host = fleet.Host(self.program, self.namespace, self.directory / name, name, port)
        host.join(self.first.config.read_text())
        self.hosts.append(host)
        return host

    def host_with_a_tunnel(self):
        """A gateway that has the fleet's only one."""
        self.apply(FILE + tunnel(1))
        host = self.host("gw-1", 4601)
        host.start()
        patience.wait_for(lambda: host.gateway.has() == ["t1/0"], host.log)
        return host

    def apply(self, text, *more, check=True):
        path = self.directory / "tunnels.toml"
        path.write_text(text)
        return self.first.fleet("apply", str(path), *more, check=check)

    def status(self):
        return json.loads(self.first.fleet("status", "-j", check=False))

    def gateways(self):
        pools = self.status()["pools"]
        return pools["default"]["gateways"] if "default" in pools else {}

    def end(self):
        for host in self.hosts:
            host.end()
        self.etcd.stop()


@pytest.fixture
def ours(program, place):
    made = Fleet(program, place)
    yield made
    made.end()


def share(ours, hosts, tunnels):
    """Whether the gateways have all tunnels between them, and each as many as it is to have."""
    names = sorted(f"t{number}/0" for number in tunnels)
    meant = {name: gateway["children"] for name, gateway in ours.gateways().items()}
    had = {host.name: host.gateway.has() for host in hosts}
    is_as_meant = meant == {name: len(tunnels) for name, tunnels in had.items()}
    return is_as_meant and all(had.values()) and sorted(sum(had.values(), [])) == names


def test_what_is_applied_is_what_is_got(ours):
    text = FILE + tunnel(1) + tunnel(2)
    assert "nothing was written" in ours.apply(text, "--dry-run")
    assert ours.status()["generation"] == 0
    said = ours.apply(text)
    assert "+ tunnel default/t1" in said and "+ pool default" in said and "applied as generation 1" in said, said
    shown = ours.first.fleet("get")
    assert KEY not in shown and "KEY" in shown
    refused = ours.apply(shown, check=False)
    assert "`KEY` is no key" in refused, refused
    got = ours.first.fleet("get", "--keys")
    assert got.count(KEY) == 2
    assert ours.apply(got).strip() == "nothing changes"
    said = ours.apply(FILE + tunnel(1, "0x" + "6b" * 20))
    assert "~ tunnel default/t1" in said and "other keys" in said and "- tunnel default/t2" in said, said
    assert KEY not in said and "6b6b" not in said
    assert [key for key in ours.etcd.keys() if "/t2/" in key or "/t1/1" in key] == []


def test_the_guides_tunnels_can_be_applied(ours, uxfrm):
    guide = (prerequisite.REPOSITORY / "docs" / "fleet.md").read_text()
    text = re.search(r"^```toml\n(# tunnels.toml\n.*?)^```", guide, re.S | re.M)[1]
    assert text.count("0x\N{HORIZONTAL ELLIPSIS}") == 2
    path = ours.directory / "tunnels.toml"
    path.write_text(text.replace("0x\N{HORIZONTAL ELLIPSIS}", KEY))
    # `uxfrm` reads the lines before it starts `uxfrm-fleet`.
    words = [str(uxfrm), "fleet", "apply", str(path), "--config", str(ours.first.config)]
    assert "applied as generation 1" in ours.namespace.run(*words)
    path.write_text(text)
    told = ours.namespace.run(*words, check=False)
    assert "tunnel `branch-1`" in told and "nothing was applied" in told, told


def test_a_file_that_is_wrong_changes_nothing(ours):
    for text, said in ((FILE + "[tunnels.X]\n", "`X` is no name"), ("[tunnels.a]\npool = \"b\"\n", "there is no pool `b`")):
        refused = ours.apply(text, check=False)
        assert said in refused, refused
    assert ours.status()["generation"] == 0


def test_etcd_tells_nothing_of_keys(ours):
    ours.apply(FILE + tunnel(1))
    database = b"".join(path.read_bytes() for path in (ours.directory / "etcd").rglob("*") if path.is_file())
    assert b"/uxfrm/1/ours/" in database
    for secret in (b"5a5a5a5a", b"10.9.0.0", b"rfc4106"):
        assert secret not in database


def test_two_agents_share_tunnels(ours):
    numbers = range(1, 9)
    ours.apply(FILE + "".join(map(tunnel, numbers)))
    one, other = ours.host("gw-1", 4601), ours.host("gw-2", 4602)
    one.start()
    other.start()
    patience.wait_for(lambda: share(ours, (one, other), numbers), lambda: one.log() + other.log())
    for host in (one, other):
        # States are opened above nothing, with numbers of their own.
        patience.wait_for(lambda: len(host.gateway.ordered("numbers")) >= len(host.gateway.has()), host.log)
        patience.wait_for(lambda: len(host.gateway.ordered("open")) >= len(host.gateway.has()), host.log)
    # A tunnel may have moved when the second one joined: no number is ever of both.
    leased = [(state, lease["first"], lease["last"]) for host in (one, other) for state, lease in host.gateway.ordered("numbers")]
    for number, (state, first, last) in enumerate(leased):
        assert all(last < begin or end < first for same, begin, end in leased[number + 1 :] if same == state), leased
    assert ours.first.fleet("status").startswith("fleet ours, generation 1\n")

    # Drained, it gives all to the other one, and takes its own again.
    had = one.gateway.has()
    one.fleet("drain")
    patience.wait_for(lambda: one.gateway.has() == [] and len(other.gateway.has()) == 8, lambda: one.log() + other.log())
    one.fleet("undrain")
    patience.wait_for(lambda: share(ours, (one, other), numbers), lambda: one.log() + other.log())
    assert one.gateway.has() == had

    # Its gateway killed: the other one has all.
    one.gateway.close()
    patience.wait_for(lambda: ours.gateways()["gw-1"]["duty"] != "active", lambda: one.log() + other.log())
    patience.wait_for(lambda: len(other.gateway.has()) == 8, lambda: one.log() + other.log())

    one.kill()
    patience.wait_for(lambda: not ours.gateways()["gw-1"]["has-lease"])
    ours.first.fleet("leave", "gw-1")
    assert set(ours.gateways()) == {"gw-2"}


def test_etcd_goes_and_comes_back(ours):
    host = ours.host_with_a_tunnel()
    ours.etcd.stop()
    patience.wait_for(lambda: "without etcd: the gateway" in host.log(), host.log)
    said = host.fleet("status", check=False)
    assert "does not answer" in said and "this host: without etcd" in said, said
    assert host.gateway.has() == ["t1/0"]
    ours.etcd.start()
    patience.wait_for(lambda: "etcd answers" in host.log().split("without etcd")[-1], host.log)
    ours.apply(FILE + tunnel(1) + tunnel(2))
    patience.wait_for(lambda: host.gateway.has() == ["t1/0", "t2/0"], host.log)


def test_what_was_compacted_is_read_anew(ours):
    host = ours.host_with_a_tunnel()
    ours.etcd.stop()
    patience.wait_for(lambda: "does not answer" in host.log(), host.log)
    # Another address, which the agent does not know: changes, and they are compacted.
    elsewhere = fleet.Etcd(ours.namespace, ours.directory / "etcd", 2479)
    ours.etcd, known = elsewhere, ours.etcd
    ours.first.config.write_text(ours.first.config.read_text().replace(known.url, elsewhere.url))
    ours.apply(FILE + tunnel(2))
    revision = json.loads(elsewhere.ctl("get", "-w", "json", "x"))["header"]["revision"]
    elsewhere.ctl("compact", str(revision))
    elsewhere.stop()
    ours.etcd = known
    known.start()
    patience.wait_for(lambda: host.gateway.has() == ["t2/0"], host.log)


def test_a_backup_that_was_put_back_is_not_believed(ours):
    host = ours.host_with_a_tunnel()
    ours.etcd.stop()
    backup = ours.directory / "backup"
    shutil.copytree(ours.etcd.directory, backup)
    ours.etcd.start()
    ours.apply(FILE + tunnel(1) + tunnel(2))
    patience.wait_for(lambda: host.gateway.has() == ["t1/0", "t2/0"], host.log)
    ours.etcd.stop()
    shutil.rmtree(ours.etcd.directory)
    backup.rename(ours.etcd.directory)
    ours.etcd.start()
    patience.wait_for(lambda: "was a backup put back?" in host.log(), host.log)
    # A new process knows it as well.
    host.stop()
    host.start(gateway=False)
    said = host.log().count("was a backup put back?")
    patience.wait_for(lambda: host.log().count("was a backup put back?") > said, host.log)
    assert "etcd answers" not in host.log().split("was a backup put back?")[-1]


def test_another_cluster_is_not_believed(ours):
    host = ours.host("gw-1", 4601)
    host.start()
    patience.wait_for(lambda: "etcd answers" in host.log(), host.log)
    ours.etcd.stop()
    shutil.rmtree(ours.etcd.directory)
    ours.etcd.more.append("--initial-cluster-token=another")
    ours.etcd.start()
    patience.wait_for(lambda: "it is another cluster" in host.log(), host.log)


def test_keys_are_changed_while_agents_run(ours):
    host = ours.host_with_a_tunnel()

    def reload():
        before = host.log().count("read ")
        host._process.send_signal(1)
        patience.wait_for(lambda: host.log().count("read ") > before, host.log)

    refused = ours.first.fleet("rotate-key", "use", check=False)
    assert "`add` first" in refused, refused
    old = ours.key.read_text()
    for step in ("add", "use"):
        ours.first.fleet("rotate-key", step)
        reload()
    refused = ours.first.fleet("rotate-key", "drop", check=False)
    assert "`reseal` first" in refused, refused
    ours.first.fleet("rotate-key", "reseal")
    host.stop()
    host.gateway.close()
    patience.wait_for(lambda: not ours.gateways()["gw-1"]["has-lease"])
    ours.first.fleet("rotate-key", "drop")
    assert old.strip() not in ours.key.read_text()
    host.start()
    patience.wait_for(lambda: host.gateway.has() == ["t1/0"], host.log)


def test_tls_and_a_user(program, place):
    space, directory = place
    certificates(space, directory)
    more = [f"--cert-file={directory / 'etcd.pem'}", f"--key-file={directory / 'etcd.key'}"]
    etcd = fleet.Etcd(space, directory / "etcd", more=more)
    etcd.ctl("user", "add", "root:secret")
    etcd.ctl("user", "add", "gateways:word")
    etcd.ctl("role", "add", "uxfrm")
    etcd.ctl("role", "grant-permission", "uxfrm", "--prefix=true", "readwrite", "/uxfrm/1/ours/")
    etcd.ctl("user", "grant-role", "gateways", "uxfrm")
    etcd.ctl("user", "grant-role", "root", "root")
    etcd.ctl("auth", "enable")
    password = directory / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    words = ["--ca", str(directory / "ca.pem"), "--user", "gateways", "--password-file", str(password)]
    with pytest.raises(RuntimeError, match="authentication failed"):
        Fleet(program, place, words, etcd)
    password.write_text("word\n")
    ours = Fleet(program, place, words, etcd)
    try:
        ours.host_with_a_tunnel()
        stranger = ours.first.config.read_text().replace("ca.pem", "other.pem")
        ours.first.config.write_text(stranger)
        assert "certificate" in ours.first.fleet("status", check=False)
    finally:
        ours.end()


def certificates(space, directory):
    """Of etcd and of who signed it; and another such one, who did not."""
    for name in ("ca", "other"):
        space.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                  "-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.pem"))
    space.run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=etcd",
              "-keyout", str(directory / "etcd.key"), "-out", str(directory / "etcd.csr"))
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    space.run("openssl", "x509", "-req", "-days", "2", "-in", str(directory / "etcd.csr"), "-CA", str(directory / "ca.pem"),
              "-CAkey", str(directory / "ca.key"), "-CAcreateserial", "-extfile", str(directory / "names"), "-out", str(directory / "etcd.pem"))
