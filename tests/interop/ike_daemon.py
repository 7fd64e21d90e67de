"""An IKE daemon in one network namespace, with a directory and a /run of its own."""

import contextlib
import pathlib
import subprocess
import tempfile
import time

import patience

START_SECONDS = STOP_SECONDS = REQUEST_SECONDS = patience.SECONDS
TOLD_LINES = 80  # of the log, in an error


class IkeDaemon:
    """Ended by `stop` (SIGTERM) or `kill`. What it is, how it starts and is spoken to is for
    those who inherit."""

    name = "daemon"

    def __init__(self, namespace):
        self._namespace = namespace
        self._process = None
        self._temporary = tempfile.TemporaryDirectory(prefix=f"uxfrm-{self.name}-")
        self.directory = pathlib.Path(self._temporary.name)
        (self.directory / "run").mkdir()

    def log(self):
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _last_words(self):
        return f"{self.name} said:\n" + "\n".join(self.log().splitlines()[-TOLD_LINES:])

    def _start(self, *command, environment=None, mounts=()):
        """Each mount is what is to be seen, and where: the machine itself is not changed."""
        mounts = [(self.directory / "run", "/run"), *mounts]
        binds = "".join(f"mount --bind {source} {place} && " for source, place in mounts)
        with open(self.directory / "log", "w") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace.name, "unshare", "--mount", "sh", "-c"]
                + [f'{binds} exec "$@"', "sh", *map(str, command)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_for(self, text, seconds=REQUEST_SECONDS):
        """Until the log has the text."""
        self._wait(lambda: text in self.log(), repr(text), seconds)

    def _wait(self, condition, what, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if (status := self._process.poll()) is not None:
                raise AssertionError(f"{self.name} ended with {status}; {self._last_words()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} from {self.name} in {seconds} s; {self._last_words()}")
            time.sleep(0.02)

    def _ask(self, *command, environment=None):
        """One command to the daemon; what it printed, or an error with the daemon's log."""
        done = subprocess.run(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=REQUEST_SECONDS,
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}:\n{done.stdout}\n{self._last_words()}")
        return done.stdout

    def running(self):
        return self._process is not None and self._process.poll() is None

    def stop(self):
        """SIGTERM: it tells its peers, and takes its states and policies away."""
        if self.running():
            self._process.terminate()
            self._process.wait(STOP_SECONDS)

    def kill(self):
        if self.running():
            self._process.kill()
            self._process.wait()

    def close(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        self.kill()
        self._temporary.cleanup()
