"""Debian's pluto of libreswan, unmodified, and its configuration."""

import subprocess

from ike_daemon import START_SECONDS, IkeDaemon
from namespace import command
from prerequisite import REPOSITORY

PLUTO = "/usr/libexec/ipsec/pluto"
SECRET = "a-secret-of-more-than-twenty-octets"


class Pluto(IkeDaemon):
    """One connection `net`, between what is behind `left` and what is behind `right`, or
    themselves when that is None: the same words at both ends, but for those in `words`."""

    name = "pluto"

    def __init__(self, namespace, before, left, right, words=()):
        super().__init__(namespace)
        self._before = before
        self._libexec = libreswan() + "/usr/libexec"
        (self.directory / "ipsec.conf").write_text(ipsec_conf(self.directory, left, right, dict(words)))
        (self.directory / "ipsec.secrets").write_text(f': PSK "{SECRET}"\n')
        (self.directory / "nss").mkdir()
        command("certutil", "-N", "-d", f"sql:{self.directory}/nss", "--empty-password")

    def start(self):
        options = ["--nofork", "--stderrlog", "--rundir", self.directory / "run", "--config", self.directory / "ipsec.conf"]
        options += ["--secretsfile", self.directory / "ipsec.secrets"]
        self._start(*self._before, PLUTO, *options, mounts=[(self._libexec, "/usr/libexec")])
        self.wait_for("loading secrets", START_SECONDS)
        self._ask(self._tool("addconn"), "--config", self.directory / "ipsec.conf", *self._socket(), "net")

    def _tool(self, name):
        return f"{self._libexec}/ipsec/{name}"

    def _socket(self):
        return "--ctlsocket", self.directory / "run" / "pluto.ctl"

    def whack(self, *arguments):
        """What one `ipsec whack` command printed."""
        return self._ask(self._tool("whack"), *self._socket(), *arguments)


def libreswan():
    """The directory below which libreswan is: unpacked, as it can't be installed beside
    strongSwan."""
    found = subprocess.run([REPOSITORY / "scripts" / "libreswan"], stdout=subprocess.PIPE, text=True, check=True)
    return found.stdout.strip().rstrip("/")


def ipsec_conf(directory, left, right, words):
    """`updown` would set routes and rules of packet filters for the kernel's IPsec; uxfrm needs
    none of that."""
    connection = {
        "ikev2": "insist",
        "authby": "secret",
        "ike": "aes_gcm128-sha2_256-dh19",
        "esp": "aes_gcm128",
        "left": left.address,
        "leftsubnet": left.net,
        "leftupdown": "/bin/true",
        "right": right.address,
        "rightsubnet": right.net,
        "rightupdown": "/bin/true",
    } | words
    lines = "".join(f"  {word}={value}\n" for word, value in connection.items() if value is not None)
    return f"""\
config setup
  nssdir={directory}/nss
  ipsecdir={directory}
  dumpdir={directory}

conn net
{lines}"""
