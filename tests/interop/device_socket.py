"""What `uxfrm dev` and `uxfrm xfrm` say, many times over without starting them as often."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import time

import patience

NAME = b"\0uxfrm/xfrm"
ASK, DEVICES = 2, 3
LARGEST = 1 << 20
WAIT_SECONDS = patience.SECONDS


class DeviceSocket:
    """A connection on which devices are spoken of: a command of `uxfrm_offload::dev` as JSON in
    each datagram, and answers."""

    def __init__(self, namespace):
        with namespace.entered():
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.connect(NAME)
        self._socket.settimeout(WAIT_SECONDS)
        self._socket.send(struct.pack("8s5I", b"uxfrm/1\n", ASK, os.getpid(), 0, 0, DEVICES))
        self._socket.recv(LARGEST)

    def close(self):
        self._socket.close()

    def _ask(self, **command):
        self._socket.send(json.dumps(command).encode())
        answers = []
        while (answer := json.loads(self._socket.recv(LARGEST))) != "done":
            assert "refused" not in answer, answer
            answers.append(answer)
        return answers

    def set(self, device, *settings):
        self._ask(set={"device": device, "settings": settings})

    def flap(self, device):
        self.set(device, {"link": "down"}, {"link": "up"})

    def wait_for_states(self, device, count):
        """Until a device has so many states, whatever they are."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(states := self._states(device)) != count:
            assert time.monotonic() < deadline, states

    def _states(self, device):
        answers = self._ask(show={"device": device, "part": "states"})
        return [state for answer in answers for state in answer.get("states", [])]


@contextlib.contextmanager
def batch(binary, namespace):
    """A function that has one `uxfrm xfrm -batch -` carry out lines; it does not wait until they
    are."""
    command = ["ip", "netns", "exec", namespace.name, binary, "xfrm", "-batch", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def carry_out(lines):
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()

    try:
        yield carry_out
    finally:
        said = process.communicate(timeout=WAIT_SECONDS)[1]
    assert process.returncode == 0, said
