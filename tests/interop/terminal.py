"""A program on a terminal of its own: keys go in, and what its screen shows comes out."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading

import patience
import prerequisite

try:
    import pyte
except ImportError:
    prerequisite.not_run("needs pyte: apt-get install python3-pyte")


class Terminal:
    """A program under a pty, and a VT220-like screen (pyte) that follows what it writes."""

    def __init__(self, command, columns=80, lines=24, environment=()):
        self._master, self._slave = pty.openpty()
        self._resize(columns, lines)
        self.before = termios.tcgetattr(self._slave)
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.output = b""
        self._lock = threading.Lock()
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **dict(environment)}
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self):
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return
            if not data:
                return
            with self._lock:
                self.output += data
                self._stream.feed(data)

    def _resize(self, columns, lines):
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        """Another size, of which the program is told by SIGWINCH."""
        with self._lock:
            self.screen.resize(lines, columns)
        self._resize(columns, lines)
        os.kill(self.process.pid, signal.SIGWINCH)

    def press(self, keys):
        os.write(self._master, keys.encode())

    def lines(self):
        with self._lock:
            return [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.lines())

    def wait_for(self, condition):
        """Waits until the lines of the screen satisfy a condition, and returns what it gave."""
        return patience.wait_for(lambda: condition(self.lines()), self.text)

    def wait_for_text(self, text):
        self.wait_for(lambda lines: any(text in line for line in lines))

    def end(self):
        """The exit code, once it has ended by itself and all that it wrote was read."""
        code = self.process.wait(patience.SECONDS)
        patience.wait_for(lambda: not select.select([self._master], [], [], 0)[0])
        return code

    def is_restored(self):
        """Whether the terminal is as it was: its modes, its first screen, its cursor."""
        modes = termios.tcgetattr(self._slave) == self.before
        left, cursor = self.output.rfind(b"\x1b[?1049l"), self.output.rfind(b"\x1b[?25h")
        return modes and left > self.output.rfind(b"\x1b[?1049h") and cursor > self.output.rfind(b"\x1b[?25l")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for descriptor in (self._slave, self._master):
            os.close(descriptor)
