"""A client of stores that outlives crashes of the server, and says what they did to its data.

    store_faults PROTOCOL ADDRESS SECONDS [POISON...]       protocols: see PROTOCOLS
    store_faults PROTOCOL ADDRESS SECONDS --half            beside them one that sends each request in two parts
    store_faults PROTOCOL ADDRESS SECONDS --calm            a hundred requests a second
    store_faults PROTOCOL ADDRESS STEPSx                    so many steps of each connection, of which none may fail

Four connections, each with a counter and a text of its own, for so many seconds. A request whose connection ends is unknown: it
may have been done or not. From then on the counter must be what was answered last, or one more; the text one that was sent since
the last answer. POISON is sent by a connection of its own, once a second: the input that kills the server.
Prints JSON: right, failed (no answer), ended (of those: its connection was there, and ended), wrong, lost, doubled, foreign, hung
(an answer, or the connection's end, that took more than 5 s).
"""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time

from mqtt import Broker
from resp_check import Connection
from text_check import Lines

COUNTS = ("right", "failed", "ended", "wrong", "lost", "doubled", "foreign", "hung")
HUNG = 5.0  # seconds
APART = 0.6  # seconds between the two parts of a request
CALM = 0.04  # seconds between two requests of a connection


class Redis:
    """Each protocol has: increment (the new number), set, get (None: not there), poison. OSError and ValueError: no answer."""

    def __init__(self, address):
        self.connection = Connection(address)

    def ask(self, *words):
        answer = self.connection.ask(*words)
        if isinstance(answer, bytes) and answer.startswith(b"LOADING"):
            raise ValueError("it loads its data")
        return answer

    def increment(self, key):
        return self.ask("INCR", key)

    def set(self, key, text):
        return self.ask("SET", key, text) == b"OK"

    def get(self, key):
        answer = self.ask("GET", key)
        return answer.decode() if isinstance(answer, bytes) else None

    def poison(self, *words):
        self.ask(*words)

    def set_in_parts(self, key, text):
        send_in_parts(self.connection.socket, f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n${len(text)}\r\n{text}\r\n")
        return self.connection.answer() == b"OK"


def send_in_parts(connection, request):
    """The second part after a while."""
    data = request.encode()
    connection.sendall(data[: len(data) - 5])
    time.sleep(APART)
    connection.sendall(data[len(data) - 5 :])


class Memcached:
    def __init__(self, address):
        self.lines = Lines(("127.0.0.1", address) if isinstance(address, int) else address)

    def increment(self, key):
        answer = self.lines.ask(f"incr {key} 1\r\n")
        if answer == "NOT_FOUND":
            self.lines.ask(f"add {key} 0 0 1\r\n0\r\n")
            answer = self.lines.ask(f"incr {key} 1\r\n")
        return int(answer)

    def set(self, key, text):
        return self.lines.ask(f"set {key} 0 0 {len(text)}\r\n{text}\r\n") == "STORED"

    def set_in_parts(self, key, text):
        send_in_parts(self.lines.socket, f"set {key} 0 0 {len(text)}\r\n{text}\r\n")
        return self.lines.line() == "STORED"

    def get(self, key):
        line = self.lines.ask(f"get {key}\r\n")
        if line == "END":
            return None
        text = self.lines.body(int(line.split()[3]))
        self.lines.line()
        return text


class Sql:
    """A database's own client, which is asked line by line through a pipe; its exit is the connection's end."""

    INCREMENT = SET = ""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        self.ask("select 1;")

    def __del__(self):
        self.process.kill()
        self.process.communicate()

    def ask(self, statement):
        self.process.stdin.write(statement + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise ConnectionError("the client has ended")
        return answer.rstrip("\n")

    def increment(self, key):
        return int(self.ask(self.INCREMENT.format(key=key)))

    def set(self, key, text):
        return self.ask(self.SET.format(key=key, text=text)) == text

    def get(self, key):
        return self.ask(f"select coalesce((select t from texts where k = '{key}'), '');") or None


class Postgres(Sql):
    INCREMENT = "insert into counts values('{key}', 1) on conflict (k) do update set n = counts.n + 1 returning n;"
    SET = "insert into texts values('{key}', '{text}') on conflict (k) do update set t = excluded.t returning t;"

    def __init__(self, address):
        super().__init__(["/usr/lib/postgresql/15/bin/psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-h", address, "-U", "nobody", "postgres"])


class Mariadb(Sql):
    MAKE = (
        "create database if not exists work; create table if not exists work.counts(k varchar(9) primary key, n int) engine=innodb;"
        "create table if not exists work.texts(k varchar(9) primary key, t text) engine=innodb; use work; select 1;"
    )
    INCREMENT = "insert into work.counts values('{key}', 1) on duplicate key update n = n + 1 returning n;"
    SET = "insert into work.texts values('{key}', '{text}') on duplicate key update t = '{text}' returning t;"

    def __init__(self, address):
        super().__init__(["mariadb", "--no-defaults", "-uroot", "-n", "-N", "-B", "-S", address])
        self.ask(self.MAKE)


class Http:
    """A store behind a web server: GET /increment/KEY, /set/KEY/TEXT, /get/KEY, and /abort."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def ask(self, path):
        try:
            self.connection.request("GET", path)
            answer = self.connection.getresponse()
            body = answer.read().decode()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        if answer.status >= 500:
            raise ConnectionError(body)
        return body if answer.status == 200 else None

    def increment(self, key):
        return int(self.ask(f"/increment/{key}"))

    def set(self, key, text):
        return self.ask(f"/set/{key}/{text}") == text

    def get(self, key):
        return self.ask(f"/get/{key}")

    def poison(self, path):
        self.ask(path)

    def set_in_parts(self, key, text):
        self.connection.connect()
        send_in_parts(self.connection.sock, f"GET /set/{key}/{text} HTTP/1.1\r\nHost: store\r\nConnection: close\r\n\r\n")
        answer = http.client.HTTPResponse(self.connection.sock)
        try:
            answer.begin()
            return answer.read().decode() == text
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error


PROTOCOLS = {
    "redis": Redis, "memcached": Memcached, "postgres": Postgres, "mariadb": Mariadb, "http": Http, "mqtt": Broker,
}


class Client:
    """One connection's keys. `unknown` counts increments without an answer since the last answer."""

    def __init__(self, number, connect):
        self.name, self.connect, self.store = f"c{number}", connect, None
        self.counter, self.unknown, self.turn = 0, 0, 0
        self.texts = {f"{self.name}-0", None}
        self.counts = dict.fromkeys(COUNTS, 0)

    def step(self, in_parts=False):
        begun = time.monotonic()
        try:
            if self.store is None:
                self.store = self.connect()
            self.turn += 1
            if in_parts:
                self.set(self.store.set_in_parts)
                self.judge_text(self.store.get(f"{self.name}s"))
            elif self.turn % 2 and hasattr(self.store, "increment"):
                self.unknown += 1
                self.judge_counter(self.store.increment(f"{self.name}n"))
            elif self.turn % 4:
                self.set(self.store.set)
            else:
                self.judge_text(self.store.get(f"{self.name}s"))
        except (OSError, ValueError):
            self.counts["failed"] += 1
            self.counts["ended"] += self.store is not None
            self.store = None
            time.sleep(0.005)
        self.counts["hung"] += time.monotonic() - begun > HUNG

    def set(self, ask):
        text = f"{self.name}-{self.turn}"
        self.texts.add(text)
        if ask(f"{self.name}s", text):
            self.texts = {text}
            self.counts["right"] += 1
        else:
            self.counts["wrong"] += 1

    def judge_counter(self, answer):
        if not isinstance(answer, int):
            self.counts["wrong"] += 1
        elif answer <= self.counter:
            self.counts["lost"] += self.counter + 1 - answer
        elif answer > self.counter + self.unknown:
            self.counts["doubled"] += answer - self.counter - self.unknown
        else:
            self.counts["right"] += 1
        if isinstance(answer, int):
            self.counter, self.unknown = answer, 0

    def judge_text(self, text):
        if text in self.texts:
            self.counts["right"] += 1
        elif text is None:
            self.counts["lost"] += 1
        elif not text.startswith(self.name):
            self.counts["foreign"] += 1
        else:
            # An older text of its own.
            self.counts["lost"] += 1
        self.texts = {text}


def main():
    protocol, address, length, poison = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    address = int(address) if address.isdigit() else address
    steps = int(length[:-1]) if length.endswith("x") else None
    end = time.monotonic() + (3600 if steps else float(length))

    def connect():
        return PROTOCOLS[protocol](address)

    is_half, is_calm = poison == ["--half"], poison == ["--calm"]
    clients = [Client(number, connect) for number in range(5 if is_half else 4)]

    def work(client):
        while time.monotonic() < end and client.turn != steps:
            client.step(client.name == "c4")
            if is_calm:
                time.sleep(CALM)

    def kill():
        while time.monotonic() < end - 1:
            time.sleep(1)
            try:
                connect().poison(*poison)
            except (OSError, ValueError):
                pass

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    if poison and not (is_half or is_calm):
        threads.append(threading.Thread(target=kill))
    socket.setdefaulttimeout(10)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {name: sum(client.counts[name] for client in clients) for name in COUNTS}
    print(json.dumps(counts))
    sys.exit(steps is not None and sum(counts.values()) != counts["right"])


if __name__ == "__main__":
    main()
