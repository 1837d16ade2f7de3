"""A client of Redis' protocol that outlives crashes of the server, and says what they did to its data.

    resp_faults SOCKET SECONDS [COMMAND...]

Four connections, each with a counter and a string of its own, for so many seconds. A request whose connection ends is unknown: it
may have been done or not. From then on the counter must be what was answered last, or one more. COMMAND is sent by a
connection of its own, once a second: the input that kills the server.
Prints JSON: right, failed (no answer), wrong, lost, doubled, foreign.
"""

import json
import socket
import sys
import threading
import time

from resp_check import Connection

COUNTS = ("right", "failed", "wrong", "lost", "doubled", "foreign")


class Client:
    """One connection's keys. `unknown` counts increments without an answer since the last answer."""

    def __init__(self, number, path):
        self.name, self.path, self.connection = f"c{number}", path, None
        self.counter, self.unknown, self.turn = 0, 0, 0
        self.texts = {f"{self.name}-0", None}
        self.counts = dict.fromkeys(COUNTS, 0)

    def ask(self, *words):
        """An answer; ValueError where the server says that it is not ready to give one."""
        answer = self.connection.ask(*words)
        if isinstance(answer, bytes) and answer.startswith(b"LOADING"):
            raise ValueError("it loads its data")
        return answer

    def step(self):
        try:
            if self.connection is None:
                self.connection = Connection(self.path)
            self.turn += 1
            if self.turn % 2:
                self.unknown += 1
                self.judge_counter(self.ask("INCR", f"{self.name}:n"))
            elif self.turn % 4:
                text = f"{self.name}-{self.turn}"
                self.texts.add(text)
                if self.ask("SET", f"{self.name}:s", text) == b"OK":
                    self.texts = {text}
                self.counts["right"] += 1
            else:
                self.judge_text(self.ask("GET", f"{self.name}:s"))
        except (OSError, ValueError):
            self.counts["failed"] += 1
            self.connection = None
            time.sleep(0.005)

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

    def judge_text(self, answer):
        text = answer.decode() if isinstance(answer, bytes) else None
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
    path, seconds, poison = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    end = time.monotonic() + seconds
    clients = [Client(number, path) for number in range(4)]

    def work(client):
        while time.monotonic() < end:
            client.step()

    def kill():
        while time.monotonic() < end - 1:
            time.sleep(1)
            try:
                Connection(path).ask(*poison)
            except OSError:
                pass

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    if poison:
        threads.append(threading.Thread(target=kill))
    socket.setdefaulttimeout(10)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({name: sum(client.counts[name] for client in clients) for name in COUNTS}))


if __name__ == "__main__":
    main()
