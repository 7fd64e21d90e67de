"""`uxfrm check`: every mistake with its file, line and word, no key in what it says, and nothing
touched.

It needs neither root nor a network.
"""

import os
import subprocess

import pytest

import patience
import prerequisite

SECRET = "deadbeef0102030405060708090a0b0c"
STATE = "xfrm state add src 10.9.0.1 dst 10.9.0.2 proto esp spi 1 mode tunnel"
AEAD = f"aead 'rfc4106(gcm(aes))' 0x{SECRET}01020304 128"


@pytest.fixture
def check(tmp_path):
    """Runs `uxfrm check` on a batch file and, if need be, more TOML; returns the exit status and
    what it printed."""
    binary = prerequisite.binary()

    def run(*lines, toml="", batch="states.batch", mode=0o640):
        (tmp_path / "states.batch").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / "states.batch").chmod(mode)
        # A store of its own: the machine's default one may be of a gateway that runs there, or ran.
        store = f'sequences = "{tmp_path.parent / "store"}"'
        own = f'xfrm = {{ batch = ["{batch}"], {store} }}\n\n'
        head = f'[xfrm]\nbatch = ["{batch}"]\n' if "sequences" in toml else own
        (tmp_path / "config.toml").write_text(head + toml)
        done = subprocess.run(
            [binary, "check", "config.toml"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience.SECONDS,
        )
        # Where the kernel has no Landlock, as before Linux 5.13, this is said of any configuration.
        lines = (line for line in done.stdout.splitlines(True) if not line.startswith("the gateway would keep more than it needs"))
        return done.returncode, "".join(lines)

    return run


@pytest.mark.parametrize(("mode", "is_told"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_keys_that_every_user_may_read_are_warned_of(mode, is_told, check):
    status, text = check(f"{STATE} {AEAD}", mode=mode)
    assert status == 0 and ("every user of this host may read the keys" in text) == is_told
    assert not is_told or ("states.batch" in text and SECRET not in text)


def test_nothing_but_regular_files_is_read(check, tmp_path):
    """A FIFO has no end before somebody has opened it, and /dev/zero none at all."""
    os.mkfifo(tmp_path / "fifo")
    for batch, kind in (("fifo", "a FIFO"), ("/dev/zero", "a device"), ("..", "a directory")):
        path = tmp_path / batch
        said = f'Cannot open file "{tmp_path.joinpath(batch) if batch[0] == "/" else batch}" for reading: it is {kind}; it has to be a regular file'
        assert check(batch=batch) == (1, f"uxfrm: {said}\n"), path
        status, text = check(toml=f'[tunnel]\nbatch = ["{batch}"]\n')
        assert status == 1 and f"it is {kind}; it has to be a regular file" in text
    binary = prerequisite.binary()
    for command in ("check", "run", "reload", "guard"):
        words = [binary, command, tmp_path / "fifo"][: 3 if command != "reload" else 2]
        done = subprocess.run(words, capture_output=True, text=True, timeout=patience.SECONDS, check=False)
        assert done.returncode != 0
        assert command == "reload" or "it is a FIFO; it has to be a regular file" in done.stderr, done.stderr


def test_the_tun_has_a_name_of_its_own(check):
    status, text = check(toml='[host]\ntun = "lo"\n')
    assert status == 1
    assert text.startswith("uxfrm: config.toml:") and "lo is the loopback device; the TUN is made by uxfrm" in text


def test_a_file_without_keys_is_everybodys(check):
    assert check("xfrm policy setdefault in block", mode=0o644) == (0, "")


HOSTS = {
    "out": "xfrm policy add src 10.1.0.1/32 dst 10.2.0.1/32 dir out tmpl src 10.9.0.1 dst 10.9.0.2 proto esp mode tunnel",
    "in": "xfrm policy add src 10.2.0.1/32 dst 10.1.0.1/32 dir in tmpl src 10.9.0.2 dst 10.9.0.1 proto esp mode tunnel",
}
BACK = "xfrm state add src 10.9.0.2 dst 10.9.0.1 proto esp spi 2 mode tunnel replay-window 128"
BACK_AEAD = AEAD.replace(SECRET, SECRET[::-1])


def test_a_right_configuration_says_its_plan_and_leaves_no_file(check, tmp_path):
    status, text = check(f"{STATE} {AEAD}", f"{BACK} {BACK_AEAD}", *HOSTS.values())
    # The host that the test runs on has none of these addresses, which is said.
    notes = [line for line in text.splitlines() if line.startswith(("note", "warning"))]
    assert status == 0 and all("neither 10.9.0.1 nor 10.9.0.2 is an address of this host" in note for note in notes), text
    assert "policies out that lead to uxfrm0: 1" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "states.batch"]


INLINE = '[inline]\nprotected = "lo"\nwire = "eth0"\n'


@pytest.mark.parametrize("toml", ["", INLINE], ids=["host", "inline"])
@pytest.mark.parametrize("direction", ["out", "in", "fwd"])
@pytest.mark.parametrize("words", ["mark 5", "dev lo"])
def test_policies_by_what_packets_do_not_show_are_refused(check, words, direction, toml):
    """They would never match. In host mode the guard looks at what comes in."""
    selector, more = (f"{words} ", "") if words.startswith("dev") else ("", f" {words}")
    status, text = check(f"xfrm policy add dst 10.2.0.0/24 {selector}dir {direction}{more} action block", toml=toml)
    if direction != "out" and not toml:
        assert (status, text) == (0, "")
    else:
        assert status == 1 and "states.batch:1: " in text and "packets come to uxfrm without theirs" in text


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        (f"{STATE.replace('tunnel', 'tunel')} {AEAD}", 63, ['"tunel"', "expected one of: transport tunnel"]),
        ("xfrm policy add src 10.1.0.1/33 dst 10.2.0.1/32 dir out", 21, ['"10.1.0.1/33"', "prefix"]),
        ("xfrm policy add src 10.1.0.0/16 dst 10.2.0.1/32 dir sideways", 53, ['"sideways"', "in out fwd"]),
        ("xfrm nonsense add", 6, ['"nonsense"', "state sa policy"]),
        (f"{STATE} {AEAD} replay-window", None, ["not complete", "replay-window"]),
        (f"{STATE} aead 'rfc4106(gcm(aes))' 0x{SECRET} 128", None, ["160, 224 or 288 bits, not 128"]),
    ],
    ids=["mode", "prefix", "direction", "object", "end", "key"],
)
def test_a_wrong_line_is_named_by_file_line_and_word(line, column, words, check):
    status, text = check("# a comment, so that the mistake is in line 2", line)
    assert status == 1
    assert f"states.batch:2:{column or ''}" in text
    for word in words:
        assert word in text, text


def test_all_wrong_lines_are_told_at_once(check):
    status, text = check("xfrm one", f"{STATE} {AEAD}", "xfrm two", "", "xfrm three")
    assert status == 1
    assert [line.split(" is unknown")[0].removeprefix("uxfrm: ") for line in text.splitlines()] == [
        'states.batch:1:6: "one"',
        'states.batch:3:6: "two"',
        'states.batch:5:6: "three"',
    ]


def test_wrong_lines_of_states_and_of_tunnels_are_told_together(check, tmp_path):
    (tmp_path / "tunnels.batch").write_text("fou add port 5555\nlink add name uxfrm0 type ipip remote 10.9.0.2\n")
    status, text = check("xfrm one", toml='[tunnel]\nbatch = ["tunnels.batch"]\n')
    assert status == 1
    assert [line.split(":")[0:2] for line in text.removeprefix("uxfrm: ").splitlines()] == [
        ["states.batch", "1"],
        ["tunnels.batch", "1"],
        ["tunnels.batch", "2"],
    ], text


def test_a_profile_is_looked_for_beside_the_configuration(check, tmp_path):
    """As batch files are, wherever uxfrm is started."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.toml").write_text('name = "mine"\n')
    config = tmp_path / "config" / "config.toml"
    config.write_text(f'xfrm.sequences = "{tmp_path / "store"}"\n[[device]]\nname = "nic0"\nprofile = "mine.toml"\n')
    command = [prerequisite.binary(), "check", config]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience.SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_databases_refuse_is_named_by_file_and_line(check):
    """The kernel's words: the second state has the same address, protocol and SPI."""
    status, text = check(f"{STATE} {AEAD}", f"{STATE} {AEAD}")
    assert (status, text) == (1, "uxfrm: states.batch:2: File exists\n")


@pytest.mark.parametrize(
    "keys",
    [
        f"aead 'rfc4106(gcm(aes))' 0x{SECRET}0102030405 128",  # too long
        f"aead 'rfc4106(gcm(aes))' 0x{SECRET}0102030g 128",  # not hexadecimal
        f"aead 'rfc4106(gcm(aes)' {SECRET} 128",  # the name is wrong
        f"aead {SECRET} 'rfc4106(gcm(aes))' 128",  # the wrong way round
        f"{AEAD} 0x{SECRET}",  # too many words
    ],
)
def test_no_key_is_shown(keys, check):
    status, text = check(f"{STATE} {keys}")
    assert status == 1 and "states.batch:1" in text
    assert SECRET not in text and SECRET[8:24] not in text


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[hots]\ntun = 'x'\n", ["config.toml:3:", "hots", "host"]),
        ("[host]\nmtu = 20\n", ["config.toml:4:", "20", "1280 to 65535"]),
        ("[host]\nmtu = 1279\n", ["config.toml:4:", "switches IPv6 off on the TUN", "ip route change … mtu N"]),
        ("[host]\nmtu = 'wide'\n", ["config.toml:4:", "wide"]),
    ],
)
def test_a_wrong_key_of_the_configuration_is_named(toml, words, check):
    status, text = check(f"{STATE} {AEAD}", toml=toml)
    assert status == 1
    for word in words:
        assert word in text, text


def test_a_missing_batch_file_is_named(check):
    status, text = check(batch="missing.batch")
    assert status == 1 and "missing.batch" in text and "No such file" in text


def test_damaged_store_of_sequence_numbers_is_told_of(check, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/sequences").write_text("not ours\n")
    status, text = check(f"{STATE} {AEAD}", toml='sequences = "store"\n')
    assert status == 0 and "damaged" in text and "new keys" in text, text


def test_the_plan_is_said(check):
    """Which rules would lead what is protected into the TUN, and what is left out of that."""
    tunnel = "xfrm policy add src 10.3.0.1/32 dst 0.0.0.0/0 dir out priority 2 tmpl src 10.9.0.1 dst 10.9.0.2 proto esp mode tunnel"
    lan = "xfrm policy add dst 192.168.1.0/24 dir out priority 1"
    status, text = check(tunnel, lan)
    assert status == 0
    assert text.splitlines()[:2] == [
        "policies out that lead to uxfrm0: 1, by the mark 0x8000000 and rule 219",
        "rule 189 from 10.3.0.1/32: 0.0.0.0/0 to uxfrm, 192.168.1.0/24 as ever",
    ]
    assert check(lan) == (0, "")


def test_what_will_not_work_is_said(check):
    """Each line is right; together they drop packets. Exit code 0: it may be meant so."""
    network = HOSTS["in"].replace("10.1.0.1/32", "10.1.0.0/24")
    near = HOSTS["out"].replace("mode tunnel", "reqid 2 mode tunnel")
    status, text = check(f"{STATE} {AEAD}", f"{BACK} {AEAD}", near, network)
    assert status == 0
    assert "has no `dir fwd` beside it" in text
    assert "it has reqid 0, the template reqid 2" in text
    assert SECRET not in text
