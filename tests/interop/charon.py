"""Debian's charon, unmodified, and the words in which it is configured."""

import os

from ike_daemon import START_SECONDS, IkeDaemon

CHARON = "/usr/lib/ipsec/charon"
PLUGINS = "random nonce openssl hmac kdf pem pkcs1 pkcs8 x509 pubkey constraints kernel-netlink socket-default vici"
OWN_DATA_PLANE = f"kernel-libipsec {PLUGINS}"


class Charon(IkeDaemon):
    """Runs with the words that go before its own, as `uxfrm exec --`."""

    name = "charon"

    def __init__(self, namespace, before=(), plugins=PLUGINS, **settings):
        super().__init__(namespace)
        self._before = before
        self._socket = f"unix://{self.directory}/vici"
        self._write("strongswan.conf", strongswan_conf(self._socket, plugins, settings))

    def _write(self, name, content):
        (self.directory / name).write_text(words(content))

    def _environment(self):
        return os.environ | {"STRONGSWAN_CONF": str(self.directory / "strongswan.conf")}

    def start(self):
        self._start(*self._before, CHARON, environment=self._environment())
        self.wait_for("spawning", START_SECONDS)
        self._wait(lambda: self._namespace.listens(self.directory / "vici"), "vici socket", START_SECONDS)

    def load(self, configuration):
        """Replaces all connections, secrets and pools by those of a `swanctl.conf`, given as a
        dictionary."""
        self._write("swanctl.conf", configuration)
        self.swanctl("--load-all", "--clear", "--file", self.directory / "swanctl.conf")

    def swanctl(self, *arguments):
        """What one swanctl command printed."""
        return self._ask("swanctl", *arguments, "--uri", self._socket, environment=self._environment())

    def initiate(self, child="net"):
        self.swanctl("--initiate", "--child", child)

    def sas(self):
        """What `swanctl --list-sas` prints."""
        return self.swanctl("--list-sas")


def words(sections):
    """A dictionary in the words of strongswan.conf and swanctl.conf."""
    return "".join(_entry(name, value, "") for name, value in sections.items())


def _entry(name, value, indent):
    if not isinstance(value, dict):
        return f"{indent}{name} = {value}\n"
    inner = "".join(_entry(key, entry, indent + "  ") for key, entry in value.items())
    return f"{indent}{name} {{\n{inner}{indent}}}\n"


def strongswan_conf(socket, plugins, settings):
    """uxfrm needs nothing of it: all is for tests' sake."""
    charon = {
        "load": plugins,
        "retransmit_timeout": 0.5,
        "retransmit_base": 1.0,
        "retransmit_tries": 3,
        "filelog": {"stderr": {"default": 1, "knl": 2, "flush_line": "yes"}},
        "plugins": {"vici": {"socket": socket}},
    }
    return {"charon": charon | settings, "swanctl": {"load": "random nonce openssl pem pkcs1 pkcs8 x509 pubkey"}}
