"""Blocks of the documentation are run as they stand, in a gateway's namespace. Which blocks are not,
and why, is said here; that their command lines are right is a unit test of `crates/cli`."""

import pathlib
import re

import pytest

from namespace import veth
from test_guides import Shell, gateway  # noqa: F401: a fixture

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# By page, the begin of a block's first line.
ELSEWHERE = {
    "README.md": ["umask 077", "mkdir peer", "sysctl -w"],  # test_readme.py
    "static-keys.md": ["umask 077", "scp to-peer", "uxfrm xfrm -batch", "uxfrm xfrm -s state"],  # test_guides.py
    "from-ip-xfrm.md": ["uxfrm exec"],  # test_guides.py
    "ike.md": ["examples/"],  # test_examples.py
    "capture.md": ["uxfrm capture"],  # test_capture.py
    "metrics.md": ["(umask 077"],  # test_metrics.py
    "web.md": ["uxfrm web"],  # test_web.py
    "logs.md": ["uxfrm run"],  # test_log.py
    "least-privilege.md": ["setpriv"],  # test_least_privilege.py
    "install.md": ["uxfrm setup"],  # test_packages.py
    "fleet.md": ["uxfrm fleet", "etcdctl role"],  # test_fleet.py
}
NOT_RUN = {
    "systemd": ["systemctl", "printf '\\n[status]"],
    "packages": ["apt install"],
    "containers": ["podman"],
    "make": ["make demo"],
    "examples of the library": ["cargo run"],
    "benches, of minutes to hours": ["uxfrm bench", "# by sockets"],
    "another user of the system": ["install -o prometheus"],
    "a daemon of IKE in place of this one": ["uxfrm run /etc/uxfrm/uxfrm.toml"],
    "a gateway that runs already": ["uxfrm check gateway.toml", "uxfrm upgrade", "uxfrm reload"],
    "a web service": ["curl"],
}


def blocks(page):
    """The shell blocks of a page, without their indent."""
    found = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.S | re.M)
    return [re.sub(r"^  +", "", block, flags=re.M) for block in found]


def block(page, begin):
    """The block of a page that begins so."""
    found = [each for each in blocks(ROOT / page) if each.startswith(begin)]
    assert found, f"{page} has no block that begins with {begin!r}"
    return found[0]


def joined(script):
    return script.replace("\\\n", "")


@pytest.fixture
def shell(uxfrm, gateway):  # noqa: F811
    veth(gateway.namespace, "wire0", gateway.namespace, "peer0")
    for address in ("10.9.0.1/24", "10.1.0.1/24"):
        gateway.namespace.ip(f"addr add {address} dev wire0")
    return Shell(uxfrm, gateway.namespace, gateway.directory)


RUN = {
    "README.md": ["uxfrm xfrm state add", "(umask 077", "uxfrm fou add"],
    "docs/save-and-sync.md": ["umask 077"],
    "docs/fou.md": ["uxfrm fou add", "uxfrm exec -- ip fou add", "uxfrm link -s show"],
    "docs/fragments.md": ["uxfrm stat"],
    "docs/nat.md": ["nft list"],
    "docs/inline.md": ["ip addr add", "xfrm policy add"],
    "docs/ike.md": ["xfrm policy add"],
    "docs/af-xdp.md": ["echo 1"],
    "docs/why.md": ["uxfrm why", "uxfrm probe"],
    "docs/mtu.md": ["uxfrm why"],
    "docs/static-keys.md": ["uxfrm xfrm state deleteall"],
    "docs/offload.md": ["uxfrm run", "uxfrm dev events", "uxfrm dev flow", "uxfrm dev add"],
}


def test_every_block_is_run_or_it_is_said_why_not():
    left = []
    for page in PAGES:
        if page.name == "commands.md":
            continue  # examples, which are held to the grammar
        name = str(page.relative_to(ROOT))
        known = [*RUN.get(name, []), *ELSEWHERE.get(page.name, []), *(each for begins in NOT_RUN.values() for each in begins)]
        left += [f"{name}: {each.splitlines()[0]}" for each in blocks(page) if not each.startswith(tuple(known))]
    assert not left, left


def test_tunnels_are_made_as_the_page_says(shell):
    page = "docs/fou.md"
    shell.paste(block(page, "uxfrm fou add"))
    assert "gue" in shell.paste(block(page, "uxfrm exec -- ip fou add"))
    said = shell.paste(block(page, "uxfrm link -s show"))
    assert "tun1" in said and "port 5555" in said and "out_no_state" in said, said


def test_the_readmes_commands_of_a_running_gateway(shell):
    state, save, fou = (block("README.md", begin) for begin in RUN["README.md"])
    lines = [line.split("#")[0] for line in joined(state).splitlines()]
    add, listing = lines[0].replace("0x… 128", f"0x{'4d1b' * 10} 128"), lines[1]
    assert "spi 0x00001004" in shell.paste(f"{add}\n{listing}\n")
    shell.paste(save)
    shell.paste(fou)
    completions, man = (line.split(">")[0] for line in lines[-2:])
    assert "complete" in shell.paste(completions)
    shell.paste(man.replace("/usr/local/share/man/man8", "pages") + "\nls pages/uxfrm-status.8 pages/uxfrm.toml.5")


def test_what_is_saved_is_put_back(shell):
    shell.paste(block("docs/save-and-sync.md", "umask 077"))


def test_keys_of_a_tunnel_are_deleted(shell):
    shell.paste(block("docs/static-keys.md", "uxfrm xfrm state deleteall"))


def test_counters_of_fragments_are_listed(shell):
    said = shell.paste(block("docs/fragments.md", "uxfrm stat"))
    assert "fragment" in said and "IpReasmReqds" in said, said


def test_masquerading_leaves_out_the_tunnel(shell):
    shell.paste(
        "nft add table ip nat; nft add chain ip nat postrouting '{ type nat hook postrouting priority 100; }'\n"
        "nft add rule ip nat postrouting masquerade\n"
    )
    assert "masquerade" in shell.paste(block("docs/nat.md", "nft list"))
    rules = shell.paste("nft list chain ip nat postrouting")
    assert rules.index("accept") < rules.index("masquerade"), rules


def interfaces(namespace):
    veth(namespace, "eth0", namespace, "peer0")
    veth(namespace, "eth1", namespace, "peer1")


def test_an_inline_gateways_host_is_set_as_the_page_says(uxfrm, gateway):  # noqa: F811
    interfaces(gateway.namespace)
    Shell(uxfrm, gateway.namespace, gateway.directory).paste(block("docs/inline.md", "ip addr add"))
    assert "unreachable 10.1.0.0/24" in gateway.namespace.ip("route show")


def test_napi_is_set_as_the_page_says(uxfrm, gateway):  # noqa: F811
    interfaces(gateway.namespace)
    Shell(uxfrm, gateway.namespace, gateway.directory).paste(block("docs/af-xdp.md", "echo 1"))


@pytest.mark.parametrize("page", ["docs/inline.md", "docs/ike.md"])
def test_lines_of_policies_are_taken(page, shell, gateway):  # noqa: F811
    lines = block(page, "xfrm policy add")
    (gateway.directory / "page.batch").write_text(lines)
    shell.paste("uxfrm xfrm -batch page.batch")
    listed = shell.paste("uxfrm xfrm policy list")
    assert listed.count("dir ") == len(lines.splitlines()), listed


@pytest.mark.parametrize(("page", "begin"), [(page, begin) for page in ("docs/why.md", "docs/mtu.md") for begin in RUN[page]])
def test_questions_about_packets_are_answered(page, begin, shell):
    """No tunnel is there: packets leave plain, which is exit code 1."""
    for line in block(page, begin).splitlines():
        wanted = 2 if "--drop" in line else 1
        shell.paste(f"code=0; {line.split('#')[0]} >/dev/null || code=$?; test $code = {wanted}")


def test_offload_devices_are_used_as_the_page_says(shell, gateway):  # noqa: F811
    page = "docs/offload.md"
    first = block(page, "uxfrm run").split("\n", 1)[1]  # it runs already
    said = shell.paste(first)
    assert "mode packet" in said and "nic0" in said, said
    shell.paste(block(page, "uxfrm dev events").split("\n", 1)[1])
    shell.paste(block(page, "uxfrm dev flow"))
    profile, others = block(page, "uxfrm dev add").split("\n", 1)
    (gateway.directory / "mine.toml").write_text('name = "mine"\n')
    shell.paste("uxfrm dev delete nic0 || true")
    shell.paste(others)
    assert "mine.toml" in profile


# A page's block of TOML that is no configuration of a gateway, by its begin.
OTHER_TOML = {
    "offload.md": ["name = "],
    "embedding.md": ["uxfrm = "],  # of a Cargo.toml
    "fleet.md": ["# tunnels.toml"],  # test_fleet.py
}
# What a block needs of another block of its page, by its begin.
NEEDED = {"af-xdp.md": {"[wire]\n# µs": '[wire]\naf_xdp = "eth1"'}}
# Warnings of `uxfrm check` that a page's configuration is to have, by the block's begin.
ACCEPTED = {}


def configurations():
    """The configurations of all pages, each with its page."""
    for page in PAGES:
        found = re.findall(r"^ *```toml\n(.*?)^ *```", page.read_text(), re.S | re.M)
        for text in (re.sub(r"^  +", "", block, flags=re.M) for block in found):
            if not text.startswith(tuple(OTHER_TOML.get(page.name, []))):
                yield pytest.param(page.name, text, id=f"{page.name}-{text.split(chr(10))[0]}")
    for path in ("docs/example.toml", "examples/gateway.toml"):
        yield pytest.param(path, (ROOT / path).read_text(), id=path)


@pytest.fixture
def guided(shell, uxfrm, gateway, tmp_path):  # noqa: F811
    """Runs `uxfrm check` in the directory of the README's gateway, on a host as the guides have it."""
    for device in ("eth0", "eth1"):
        veth(gateway.namespace, device, gateway.namespace, f"{device}-peer")
    for forwarding in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
        gateway.namespace.run("sysctl", "-qw", f"{forwarding}=1")
    directory = tmp_path / "guided"
    directory.mkdir(mode=0o700)
    here = Shell(uxfrm, gateway.namespace, directory)
    here.paste(block("README.md", "umask 077") + block("README.md", "mkdir peer").split("scp")[0])
    # `docs/example.toml` has them apart.
    here.paste("grep 'xfrm state' tunnel.batch > states.batch; grep 'xfrm policy' tunnel.batch > policies.batch")
    return here, directory


def warnings(told):
    return [line for line in told.splitlines() if line.startswith("warning:")]


@pytest.mark.parametrize(("page", "text"), configurations())
def test_no_configuration_of_the_pages_has_a_warning(page, text, guided):
    shell, directory = guided
    for begin, needed in NEEDED.get(page, {}).items():
        text = text.replace("[wire]", needed, 1) if text.startswith(begin) else text
    if "[xfrm]" not in text:
        text += '\n[xfrm]\nbatch = ["tunnel.batch"]\n'
    store = f'sequences = "{directory / "store"}"'
    text = text.replace("[xfrm]\n", f"[xfrm]\n{store}\n", 1) if "\nsequences = " not in text else text
    (directory / "page.toml").write_text(text)
    told = warnings(shell.paste("uxfrm check page.toml 2>&1"))
    accepted = [words for begin, words in ACCEPTED.get(page, {}).items() if text.startswith(begin)]
    assert all(any(words in line for words in accepted) for line in told), told


def test_both_ends_of_the_readme_have_no_warning(guided):
    shell, _ = guided
    for config in ("gateway.toml", "peer/gateway.toml"):
        assert warnings(shell.paste(f"uxfrm check {config} 2>&1")) == [], config


@pytest.mark.parametrize("outer", [4, 6])
@pytest.mark.parametrize("inner", [4, 6])
def test_what_setup_static_writes_has_no_warning(outer, inner, guided, gateway):  # noqa: F811
    shell, directory = guided
    if outer == 6:
        gateway.namespace.ip("addr add fd09::1/64 dev wire0 nodad")
    ends = {4: ("10.9.0.1", "10.9.0.2"), 6: ("fd09::1", "fd09::2")}[outer]
    nets = {4: ("10.1.0.0/24", "10.2.0.0/24"), 6: ("fd01::/64", "fd02::/64")}[inner]
    words = f"--local {ends[0]} --peer {ends[1]} --local-net {nets[0]} --peer-net {nets[1]}"
    (directory / "root").mkdir()
    shell.paste(f"uxfrm setup static --root root {words}")
    for place in ("root/etc/uxfrm", "root/etc/uxfrm/peer"):
        config = directory / place / "uxfrm.toml"
        assert config.exists(), shell.paste("find root")
        config.write_text(config.read_text() + f'sequences = "{directory / "store"}"\n')
        told = warnings(shell.paste(f"uxfrm check {config} 2>&1"))
        assert told == [], (place, told)
