"""The traffic of the interop tests: an echo service, TCP and UDP, and its client.

Runs on both sides of the wire: in the test's network namespaces and inside the User-Mode Linux
guest. Every payload is full of MARKER, so a capture of the wire shows at once whether any of it
went out in the clear.
"""

import hashlib
import socket
import threading

PORT = 7007
MARKER = b"UXFRM-PLAINTEXT!"
PACKET_INFO_OPTION = {
    socket.AF_INET: (socket.IPPROTO_IP, 8),  # IP_PKTINFO: interface, local address, destination of the header
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO),  # destination, interface
}
DIGEST = hashlib.sha256().digest_size


def payload(length):
    """`length` bytes: MARKER and a counter, again and again, so that a lost or moved piece changes
    the digest."""
    pieces = (MARKER + number.to_bytes(8, "big") for number in range(length // 24 + 1))
    return b"".join(pieces)[:length]


def receive_all(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


def _any_interface(level, kind, info):
    """The packet information of a datagram, as the sender of its answer needs it: the interface
    left open."""
    if level == socket.IPPROTO_IP:
        return level, kind, bytes(4) + info[8:12] + info[8:12]
    return level, kind, info[:16] + bytes(4)


class EchoServer:
    """Answers on PORT at every address of the namespace in which it is made, until `close`."""

    def __init__(self):
        self._closed = False
        self._sockets = []
        for family in (socket.AF_INET, socket.AF_INET6):
            self._serve(family, socket.SOCK_STREAM, self._answer_streams)
            self._serve(family, socket.SOCK_DGRAM, self._answer_datagrams)

    def _serve(self, family, kind, answer):
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_DGRAM:
            listener.setsockopt(*PACKET_INFO_OPTION[family], 1)
        listener.bind(("", PORT))
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.settimeout(0.2)
        self._sockets.append(listener)
        threading.Thread(target=answer, args=(listener,), daemon=True).start()

    def _answer_streams(self, listener):
        while not self._closed:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._answer_stream, args=(connection,), daemon=True).start()

    @staticmethod
    def _answer_stream(connection):
        try:
            with connection:
                connection.settimeout(60)
                data = receive_all(connection)
                connection.sendall(hashlib.sha256(data).digest() + data)
        except OSError:
            pass  # the client sees the broken connection and reports it

    def _answer_datagrams(self, listener):
        """Answers from the address that was asked, which is not always the one that the host would
        choose."""
        while not self._closed:
            try:
                data, ancillary, _, sender = listener.recvmsg(65536, socket.CMSG_SPACE(20))
                listener.sendmsg([data], [_any_interface(*message) for message in ancillary], 0, sender)
            except TimeoutError:
                continue
            except OSError:
                if self._closed:
                    return

    def close(self):
        self._closed = True
        for listener in self._sockets:
            listener.close()


def transfer(source, destination, length, timeout=60, congestion=None):
    """Sends `length` bytes over TCP, has them digested and sent back; raises unless both directions
    were faithful.

    `congestion` is the congestion control to send with, where that may not be the host's own
    choice."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    data = payload(length)
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        if congestion is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        connection.bind((source, 0))
        connection.connect((destination, PORT))
        sender = threading.Thread(target=_send, args=(connection, data), daemon=True)
        sender.start()
        answer = receive_all(connection)
        sender.join()
    if answer[:DIGEST] != hashlib.sha256(data).digest():
        raise AssertionError(f"{destination} received other bytes than {source} sent")
    if answer[DIGEST:] != data:
        raise AssertionError(f"{source} received other bytes than {destination} sent back")


def _send(connection, data):
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
