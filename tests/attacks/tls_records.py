"""TLS records of one byte each, which take as long to decrypt as records of some hundred bytes."""

from __future__ import annotations

import ssl

from .client_frames import RELAY, broadcast, upgrade
from .target import Report, Target
from .wire import Raw, drive

MESSAGE = broadcast("records", "x" * 30_000)


class SecureRaw(Raw):
    """A connection with TLS."""

    def __init__(self, port: int, greeting: bytes) -> None:
        super().__init__(port)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        self.outgoing = outgoing
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(outgoing.read())
                incoming.write(self.socket.recv(1 << 16))
            else:
                break
        self.tls.write(greeting)
        self.socket.sendall(outgoing.read())
        self.socket.setblocking(False)

    def push(self) -> None:
        """Send the records of a message again and again; each is encrypted anew."""
        if self.place >= len(self.feed):
            for byte in MESSAGE:
                self.tls.write(bytes((byte,)))
            self.feed, self.place = self.outgoing.read(), 0
        try:
            for _ in range(8):
                count = self.socket.send(memoryview(self.feed)[self.place : self.place + (1 << 18)])
                self.place += count
                self.sent += count
                if self.place >= len(self.feed):
                    return
        except BlockingIOError:
            return
        except OSError:
            self.end()


def records(target: Target, seconds: float) -> Report:
    """Broadcasts of 30 kB, a byte in each record."""
    report = Report()
    drive([SecureRaw(target.http, upgrade(target, RELAY)) for _ in range(4)], report, seconds)
    return report
