"""Debian's charon, unmodified, in one network namespace, and the words in which it is configured."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time

CHARON = "/usr/lib/ipsec/charon"
PLUGINS = "random nonce openssl hmac kdf pem pkcs1 pkcs8 x509 pubkey constraints kernel-netlink socket-default vici"
OWN_DATA_PLANE = f"kernel-libipsec {PLUGINS}"
START_SECONDS = 10
STOP_SECONDS = 5
REQUEST_SECONDS = 20


class Charon:
    """Started by `start` with the words that go before its own, as `uxfrm exec --`; ended by `stop` or `kill`."""

    def __init__(self, namespace, before=(), plugins=PLUGINS, **settings):
        self._namespace = namespace
        self._before = before
        self._process = None
        self._temporary = tempfile.TemporaryDirectory(prefix="uxfrm-charon-")
        self.directory = pathlib.Path(self._temporary.name)
        (self.directory / "run").mkdir()
        self._write("strongswan.conf", strongswan_conf(self._socket, plugins, settings))

    @property
    def _socket(self):
        return f"unix://{self.directory}/vici"

    def _write(self, name, content):
        (self.directory / name).write_text(words(content))

    def _environment(self):
        return os.environ | {"STRONGSWAN_CONF": str(self.directory / "strongswan.conf")}

    def log(self):
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self):
        """In a mount namespace of its own, as its process number is always in /run."""
        own_run = f'mount --bind {self.directory}/run /run && exec "$@"'
        with open(self.directory / "log", "w") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace.name, "unshare", "--mount", "sh", "-c", own_run, "sh"]
                + [*self._before, CHARON],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wait_for("spawning", START_SECONDS)
        self._wait(lambda: (self.directory / "vici").exists(), "its vici socket", START_SECONDS)

    def wait_for(self, text, seconds=REQUEST_SECONDS):
        """Until charon's log has the text."""
        self._wait(lambda: text in self.log(), f"{text!r}", seconds)

    def _wait(self, condition, what, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if (status := self._process.poll()) is not None:
                raise AssertionError(f"charon ended with {status}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} from charon in {seconds} s:\n{self.log()}")
            time.sleep(0.02)

    def load(self, configuration):
        """Replaces all connections, secrets and pools by those of a `swanctl.conf`, given as a dictionary."""
        self._write("swanctl.conf", configuration)
        self.swanctl("--load-all", "--clear", "--file", str(self.directory / "swanctl.conf"))

    def swanctl(self, *arguments):
        """One swanctl command; what it printed, or an error with charon's log."""
        done = subprocess.run(
            ["swanctl", *arguments, "--uri", self._socket],
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=REQUEST_SECONDS,
        )
        if done.returncode != 0:
            raise AssertionError(f"swanctl {' '.join(arguments)}:\n{done.stdout}\ncharon said:\n{self.log()}")
        return done.stdout

    def initiate(self, child="net"):
        self.swanctl("--initiate", "--child", child)

    def sas(self):
        """What `swanctl --list-sas` prints."""
        return self.swanctl("--list-sas")

    def stop(self):
        """SIGTERM: charon tells its peers, and takes its states and policies away."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)

    def kill(self):
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def close(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        self.kill()
        self._temporary.cleanup()


def words(sections):
    """A dictionary in the words of strongswan.conf and swanctl.conf."""
    return "".join(_entry(name, value, "") for name, value in sections.items())


def _entry(name, value, indent):
    if not isinstance(value, dict):
        return f"{indent}{name} = {value}\n"
    inner = "".join(_entry(key, entry, indent + "  ") for key, entry in value.items())
    return f"{indent}{name} {{\n{inner}{indent}}}\n"


def strongswan_conf(socket, plugins, settings):
    """What uxfrm needs is `install_routes = no`: its own routes lead into its TUN. The rest is for tests' sake."""
    charon = {
        "load": plugins,
        "install_routes": "no",
        "retransmit_timeout": 0.5,
        "retransmit_tries": 2,
        "filelog": {"stderr": {"default": 1, "knl": 2, "flush_line": "yes"}},
        "plugins": {"vici": {"socket": socket}},
    }
    return {"charon": charon | settings, "swanctl": {"load": "random nonce openssl pem pkcs1 pkcs8 x509 pubkey"}}
