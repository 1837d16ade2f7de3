"""A client of web servers of files.

    http_check make FOLDER           writes files of many sizes, the same each time
    http_check get FOLDER PORT       gets them over three connections at once, each many times, and compares every byte

Options: `--rounds N` (6), `--close` (a connection a request), `--tls`, `--await PORT` (of the server behind), `--seconds N`
(through crashes; prints JSON), `--calm` (75 requests a second). Counts wrong, foreign (another file's) and failed answers, of the
last those whose connection was there and ended, and answers that took more than 5 s.
"""

import argparse
import http.client
import itertools
import json
import os
import random
import socket
import ssl
import sys
import threading
import time

HUNG = 5.0  # seconds
CALM = 0.04  # seconds between two requests of a connection
SIZES = [0, 1, 17, 500, 4096, 10000, 65536, 200000]


def make(folder):
    os.makedirs(folder, exist_ok=True)
    source = random.Random(1)
    for number, size in enumerate(SIZES * 3):
        with open(os.path.join(folder, f"file{number}.txt"), "wb") as file:
            file.write(source.randbytes(size).hex().encode()[:size])


def connected(port, tls):
    if tls:
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=ssl._create_unverified_context())
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def get(folder, port, rounds, close, tls, seconds, calm=False):
    """Counts of answers by what they were. With `seconds` the server may crash: rounds go on for so long."""
    end = time.monotonic() + seconds
    files = {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}
    counts, lock = dict.fromkeys(("right", "wrong", "foreign", "failed", "ended", "hung"), 0), threading.Lock()

    def client(seed):
        order = random.Random(seed)
        connection = connected(port, tls)
        for turn in itertools.count():
            if turn >= rounds if not seconds else time.monotonic() > end:
                break
            for name in order.sample(sorted(files), len(files)):
                begun, ended, was_connected = time.monotonic(), False, connection.sock is not None
                try:
                    connection.request("GET", f"/{name}")
                    answer = connection.getresponse()
                    body = answer.read()
                    if answer.status != 200:
                        print(name, answer.status, body[:200])
                    state = "right" if answer.status == 200 and body == files[name] else (
                        "foreign" if body and body in files.values() else "wrong")
                except (OSError, http.client.HTTPException) as error:
                    state, ended = "failed", was_connected
                    connection.close()
                    if seconds:
                        time.sleep(0.005)
                    else:
                        print(name, error)
                with lock:
                    counts[state] += 1
                    counts["ended"] += ended
                    counts["hung"] += time.monotonic() - begun > HUNG
                if calm:
                    time.sleep(CALM)
                if close:
                    connection.close()
        connection.close()

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def reach(port):
    """Waits until something listens there."""
    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["make", "get"])
    parser.add_argument("folder")
    parser.add_argument("port", type=int, nargs="?")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--close", action="store_true")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--calm", action="store_true")
    parser.add_argument("--await", type=int, dest="behind")
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder)
        return
    if options.behind:
        reach(options.behind)
    counts = get(options.folder, options.port, options.rounds, options.close, options.tls, options.seconds, options.calm)
    if options.seconds:
        print(json.dumps(counts))
        return
    print(counts)
    sys.exit(any(counts[state] for state in counts if state != "right"))


if __name__ == "__main__":
    main()
