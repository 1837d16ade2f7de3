"""A client of servers that speak Redis' protocol, with a model of what they must answer.

    resp_check SOCKET [--rounds N] [--seed N]

Four connections, one after another in an order drawn from the seed, each with keys of its own: strings, counters, lists, hashes,
pipelines, transactions. Each answer is compared with the model's. Prints counts and a digest of all answers.
"""

import argparse
import hashlib
import random
import socket
import sys


class Connection:
    """To a path, or to a port of this machine."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.settimeout(30)
        self.socket.connect(address if isinstance(address, str) else ("127.0.0.1", address))
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        parts = [str(word).encode() for word in words]
        self.socket.sendall(
            b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        )

    def answer(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def ask(self, *words):
        self.send(*words)
        return self.answer()


class Client:
    """One connection's keys, and what they must hold."""

    def __init__(self, number, path, source):
        self.name, self.connection, self.source = f"c{number}", Connection(path), source
        self.strings, self.lists, self.counter = {}, [], 0

    def step(self):
        """Pairs of (answer, what it must be)."""
        source, ask = self.source, self.connection.ask
        key = f"{self.name}:s{source.randrange(50)}"
        what = source.choice(["set", "get", "append", "push", "pop", "count", "pipeline", "transaction"])
        if what == "set":
            value = source.randbytes(source.choice([3, 30, 3000])).hex()
            self.strings[key] = value
            yield ask("SET", key, value), b"OK"
        elif what == "get":
            held = self.strings.get(key)
            yield ask("GET", key), held.encode() if held is not None else None
        elif what == "append":
            self.strings[key] = self.strings.get(key, "") + "x"
            yield ask("APPEND", key, "x"), len(self.strings[key])
        elif what == "push":
            self.lists.append(str(source.randrange(1000)))
            yield ask("RPUSH", f"{self.name}:l", self.lists[-1]), len(self.lists)
        elif what == "pop":
            yield ask("LPOP", f"{self.name}:l"), self.lists.pop(0).encode() if self.lists else None
        elif what == "count":
            self.counter += 1
            yield ask("INCR", f"{self.name}:n"), self.counter
        elif what == "pipeline":
            for _ in range(20):
                self.connection.send("INCR", f"{self.name}:n")
            for _ in range(20):
                self.counter += 1
                yield self.connection.answer(), self.counter
        else:
            yield ask("MULTI"), b"OK"
            yield ask("INCR", f"{self.name}:n"), b"QUEUED"
            self.counter += 1
            yield ask("EXEC"), [self.counter]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source = random.Random(options.seed)
    clients = [Client(number, options.path, source) for number in range(4)]
    digest, right, wrong = hashlib.sha256(), 0, 0
    for _ in range(options.rounds):
        client = source.choice(clients)
        for answer, expected in client.step():
            digest.update(repr(answer).encode())
            if answer == expected:
                right += 1
            else:
                wrong += 1
                print(f"{client.name}: {answer!r} in place of {expected!r}")
    print(f"right {right}, wrong {wrong}, digest {digest.hexdigest()[:16]}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
