"""A client of message brokers that speak MQTT 3.1.1: what it publishes is retained, and is asked for by subscribing."""

import socket
import struct


def text(value):
    return struct.pack(">H", len(value)) + value.encode()


class Broker:
    """A connection with a store's `set` and `get`; a topic is a key."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.file, self.number = self.socket.makefile("rb"), 0
        self.send(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text(""))
        if self.packet() != (0x20, b"\0\0"):
            raise ConnectionError("not connected")

    def send(self, head, body):
        size, rest = b"", len(body)
        while True:
            size += bytes([rest % 128 + (128 if rest > 127 else 0)])
            rest //= 128
            if not rest:
                break
        self.socket.sendall(bytes([head]) + size + body)

    def packet(self):
        head = self.file.read(1)
        size = shift = 0
        while True:
            byte = self.file.read(1)
            if not byte:
                raise ConnectionError("the connection ended")
            size |= (byte[0] & 127) << shift
            shift += 7
            if byte[0] < 128:
                break
        return head[0], self.file.read(size)

    def ask(self, head, body, answer):
        """Sends a packet with a number; what comes until it is acknowledged."""
        self.number = self.number % 65535 + 1
        number, before = struct.pack(">H", self.number), []
        self.send(head, body(number))
        while True:
            kind, got = self.packet()
            if kind == answer and got[:2] == number:
                return before
            before.append((kind, got))

    def set(self, key, value):
        return self.ask(0x33, lambda number: text(key) + number + value.encode(), 0x40) == []

    def get(self, key):
        before = self.ask(0x82, lambda number: number + text(key) + b"\0", 0x90)
        # What is retained comes before the answer to a ping, and at most once.
        self.send(0xC0, b"")
        while (packet := self.packet())[0] != 0xD0:
            before.append(packet)
        self.ask(0xA2, lambda number: number + text(key), 0xB0)
        found = [got[2 + len(key) :].decode() for kind, got in before if kind >> 4 == 3]
        return found[-1] if found else None
