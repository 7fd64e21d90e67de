"""Numbered datagrams both ways, to see whether any of them is lost."""

import socket
import threading
import time

import echo
import patience

INTERVAL_SECONDS = 0.01
LAST_SECONDS = 10  # that the last answers may take


class Probes:
    """Numbered datagrams to an echo service, one every INTERVAL_SECONDS, and which of them came
    back."""

    def __init__(self, namespace, source, destination):
        self.sent, self.answered = 0, set()
        self._stopping = threading.Event()
        with namespace.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((source, 0))
        self._socket.connect((destination, echo.PORT))
        self._socket.settimeout(0.2)
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self):
        while not self._stopping.wait(INTERVAL_SECONDS):
            self._socket.send(echo.MARKER + self.sent.to_bytes(8, "big"))
            self.sent += 1

    def _receive(self):
        last_answer = time.monotonic()
        while self._expects_more(last_answer):
            try:
                data = self._socket.recv(2048)
            except TimeoutError:
                continue
            self.answered.add(int.from_bytes(data[-8:], "big"))
            last_answer = time.monotonic()

    def _expects_more(self, last_answer):
        if not self._stopping.is_set():
            return True
        return len(self.answered) < self.sent and time.monotonic() - last_answer < LAST_SECONDS

    def wait_for(self, count):
        """Until so many more have been sent."""
        until = self.sent + count
        patience.wait_for(lambda: self.sent >= until, lambda: f"{self.sent} of {until} sent")

    def lost(self):
        """Ends the sending, waits for what is still under way, and returns the numbers without
        an answer."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()
        return sorted(set(range(self.sent)) - self.answered)
