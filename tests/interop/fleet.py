"""An etcd, agents of a fleet, and gateways that only say that they do what agents order."""

import hashlib
import json
import os
import pathlib
import socket
import struct
import subprocess
import threading

import patience

MAGIC = b"uxfrm/1\n"
ASK, WELCOME = 2, 3
AGENTS = 7  # the dialect of agents


class Etcd:
    """One node of Debian's etcd at 127.0.0.1 of a namespace, its data in a directory."""

    def __init__(self, namespace, directory, port=2379, more=()):
        self.namespace, self.directory, self.port = namespace, pathlib.Path(directory), port
        self.more = list(more)
        self.scheme = "https" if any("--cert-file" in word for word in self.more) else "http"
        self._process = None
        self.start()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self):
        peers = f"http://127.0.0.1:{self.port + 1}"
        words = ["etcd", "--name=one", f"--data-dir={self.directory}", f"--listen-client-urls={self.url}"]
        words += [f"--advertise-client-urls={self.url}", f"--listen-peer-urls={peers}"]
        words += [f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=one={peers}", *self.more]
        log = self.directory.with_suffix(".log")
        environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"}
        with open(log, "w") as written, self.namespace.entered():
            self._process = subprocess.Popen(words, stdout=written, stderr=written, env=environment)
        patience.wait_for(lambda: "ready to serve" in log.read_text() or "serving" in log.read_text(), log.read_text)

    def stop(self):
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ctl(self, *words, check=True, more=()):
        tls = [f"--cacert={self.directory.parent / 'ca.pem'}"] if self.scheme == "https" else []
        words = ["env", "ETCDCTL_API=3", "etcdctl", f"--endpoints={self.url}", *tls, *more, *words]
        return self.namespace.run(*words, check=check)

    def keys(self, prefix="/uxfrm/"):
        return self.ctl("get", "--prefix", "--keys-only", prefix).split()


class FakeGateway:
    """Listens at a control socket as a gateway does, and says of each order that it is done."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.children, self.orders, self.closed = {}, [], False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connection = None
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        """As where the gateway is killed."""
        self.closed = True
        for end in (self._connection, self._listener):
            if end:
                end.close() if end is self._listener else end.shutdown(socket.SHUT_RDWR)
        self.path.unlink(missing_ok=True)

    def _serve(self):
        while not self.closed:
            try:
                connection, _ = self._listener.accept()
                self._connection = connection
                self._speak(connection)
            except OSError:
                pass

    def _speak(self, connection):
        kind, port, _, _, dialect = struct.unpack("=5I", connection.recv(28)[8:])
        assert (kind, dialect) == (ASK, AGENTS)
        connection.send(MAGIC + struct.pack("=5I", WELCOME, port, 0, 0, 0))
        self._say(connection, {"present": [dict(child) for child in self.children]})
        pending = b""
        while datagram := connection.recv(1 << 16):
            *lines, pending = (pending + datagram).split(b"\n")
            for line in lines:
                self._do(connection, json.loads(line))

    def _say(self, connection, news):
        connection.send(json.dumps(news).encode() + b"\n")

    def _do(self, connection, order):
        self.orders.append(order)
        (name, value), = order.items()
        if name == "install":
            child, lines = value
            self.children[tuple(child.items())] = lines
            states = [self._state(child, direction) for direction in ("in", "out")]
            self._say(connection, {"report": {"installed": [child, states]}})
        elif name == "freeze":
            self._say(connection, {"report": {"frozen": [value, []]}})
        elif name == "remove":
            self.children.pop(tuple(value.items()), None)

    @staticmethod
    def _state(child, direction):
        name = hashlib.sha256(f"{child} {direction}".encode()).hexdigest()[:32]
        return {"state": name, "key": int(name, 16), "direction": direction, "last_number": 2**32 - 1}

    def has(self):
        return sorted(f"{dict(child)['tunnel']}/{dict(child)['index']}" for child in list(self.children))

    def ordered(self, name):
        return [order[name] for order in list(self.orders) if name in order]


class Host:
    """A gateway's place in a fleet: its configuration, its state, its agent."""

    def __init__(self, program, namespace, directory, name, port):
        self.program, self.namespace, self.name = program, namespace, name
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(exist_ok=True)
        self.config = self.directory / "fleet.toml"
        self.port = port
        self._process, self._log = None, self.directory / "log"
        self.gateway = None

    def fleet(self, *words, check=True):
        return self.namespace.run(str(self.program), *words, "--config", str(self.config), check=check)

    def join(self, template, *more):
        """With the configuration and the key of the fleet's first host."""
        self.config.write_text(template)
        words = ["join", self.name, "--address", f"127.0.0.1:{self.port}", "--state", self.directory / "state"]
        self.fleet(*map(str, words), "--control", str(self.directory / "control"), *more)

    def start(self, gateway=True):
        if gateway:
            self.gateway = FakeGateway(self.directory / "control")
        with open(self._log, "a") as log, self.namespace.entered():
            self._process = subprocess.Popen([self.program, "run", "--config", self.config], stdout=log, stderr=log)

    def log(self):
        return self._log.read_text() if self._log.exists() else ""

    def stop(self):
        if self._process:
            self._process.terminate()
            assert self._process.wait(patience.SECONDS) == 0, self.log()
            self._process = None

    def kill(self):
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self):
        self.kill()
        if self.gateway:
            self.gateway.close()
