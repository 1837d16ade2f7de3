"""A client of web servers of files.

    http_check make FOLDER           writes files of many sizes, the same each time
    http_check get FOLDER PORT       gets them over three connections at once, each many times, and compares every byte

Options: `--rounds N` (6), `--close` (a connection a request). Counts wrong, foreign (another file's) and failed answers.
"""

import argparse
import http.client
import os
import random
import sys
import threading

SIZES = [0, 1, 17, 500, 4096, 10000, 65536, 200000]


def make(folder):
    os.makedirs(folder, exist_ok=True)
    source = random.Random(1)
    for number, size in enumerate(SIZES * 3):
        with open(os.path.join(folder, f"file{number}.txt"), "wb") as file:
            file.write(source.randbytes(size).hex().encode()[:size])


def get(folder, port, rounds, close):
    """Counts of answers by what they were."""
    files = {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}
    counts, lock = {"right": 0, "wrong": 0, "foreign": 0, "failed": 0}, threading.Lock()

    def client(seed):
        order = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for _ in range(rounds):
            for name in order.sample(sorted(files), len(files)):
                try:
                    connection.request("GET", f"/{name}")
                    answer = connection.getresponse()
                    body = answer.read()
                    state = "right" if answer.status == 200 and body == files[name] else (
                        "foreign" if body and body in files.values() else "wrong")
                except (OSError, http.client.HTTPException) as error:
                    state = "failed"
                    print(name, error)
                    connection.close()
                with lock:
                    counts[state] += 1
                if close:
                    connection.close()
        connection.close()

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["make", "get"])
    parser.add_argument("folder")
    parser.add_argument("port", type=int, nargs="?")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--close", action="store_true")
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder)
        return
    counts = get(options.folder, options.port, options.rounds, options.close)
    print(counts)
    sys.exit(any(counts[state] for state in counts if state != "right"))


if __name__ == "__main__":
    main()
