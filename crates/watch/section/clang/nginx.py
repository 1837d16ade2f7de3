#!/usr/bin/env python3
"""Debian's nginx, built from its source package with and without marks of the pass: does it serve right, what do the marks cost
with no watcher about, is a hang found that was put into it?

    apt-get source nginx                        # needs a deb-src line; elsewhere any source of nginx
    nginx.py SOURCE PASS LIBRARY ORBIT [ROUNDS [STARTS]]

PASS is rmk_sections.so, LIBRARY librmk_section.a, ORBIT the command. In each of ROUNDS (1000) the servers get 256 requests each for a
file of 612 bytes, then, in a fourth of the rounds, 64 for a page of 100 KB that is compressed. CPU time of a worker is the kernel's
(`schedstat`). The ratio of a round is to the unmarked server in the same round; printed are medians with an interval of 95 %
(bootstrap over the starts: the servers are started STARTS (10) times, since where their memory comes to lie counts). The unmarked server
runs twice: the second shows what cannot be resolved. Where there is valgrind, instructions of a request are counted too: those of the
program, without the kernel's, in COUNTED requests more of one run than of another.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CHOSEN = "ngx_epoll_process_events ngx_http_core_run_phases ngx_http_process_request_line ngx_http_process_request_headers"
CHOSEN += " ngx_output_chain ngx_event_expire_timers"
MODES = {
    "unmarked": None,
    "two sections": " ".join(f"functions={name}" for name in CHOSEN.split()[:2]),
    "six sections": " ".join(f"functions={name}" for name in CHOSEN.split()),
    "six sections, marks that call": " ".join(f"functions={name}" for name in CHOSEN.split()) + " marks=call",
    "all coarse loops": "",
}
CLIENTS = 16
COUNTED = 3200
# What is asked for, how often in a round by each client, in how many of the rounds.
REQUESTS = {
    "a file of 612 bytes": (b"GET /f HTTP/1.1\r\nHost: a\r\nUser-Agent: x/1\r\nAccept: */*\r\n\r\n", 16, 1),
    "a page of 100 KB, compressed": (b"GET /page.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n", 4, 4),
}
# A list that never ends, for one name of a file, in the second loop of the filter of headers.
LOOP = "    for (i = 0; /* void */; i++) {\n"
HANG = '        if (r->uri.len == 5 && ngx_strncmp(r->uri.data, "/hang", 5) == 0) {\n            i--;\n            continue;\n        }\n'


def build(source, to, words, pass_, library, more=""):
    """Configures and builds a copy of the source, with more options of the compiler; the program. Without a pass the marks are the source's own."""
    if source != to:
        shutil.copytree(source, to, symlinks=True)
    flags = "-O2 -g -Wno-error" + (f" -fpass-plugin={pass_}" if words is not None and pass_ else "") + more
    configure = ["./configure", "--with-cc=clang", f"--with-cc-opt={flags}", "--with-threads", "--without-http_rewrite_module"]
    configure.append(f"--with-ld-opt={library} -lgcc_s -lm" if words is not None else "--with-ld-opt=")
    environment = {"PATH": "/usr/bin:/bin", "ORBIT_SECTIONS": words or ""}
    for command in (configure, ["make", "-s", "-j2"]):
        subprocess.run(command, cwd=to, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return to / "objs/nginx"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """One nginx with one worker, and connections to it; without `forks` one process does all."""

    def __init__(self, program, folder, before=(), forks=True, environment=()):
        self.port, name = free_port(), hashlib.md5(str(random.random()).encode()).hexdigest()
        conf = folder / f"{name}.conf"
        temporary = " ".join(f"{of}_temp_path {folder}/{of};" for of in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        conf.write_text(
            f"master_process {'on' if forks else 'off'}; worker_processes 1; user root; daemon off; pid {folder}/{name}.pid; error_log {folder}/{name}.log;\nevents {{}}\n"
            f"http {{ types {{ text/html html; }} gzip on; access_log off; keepalive_requests 1000000000; {temporary}\n"
            f"server {{ listen 127.0.0.1:{self.port}; root {folder}/html; }} }}\n"
        )
        command = [*before, str(program), "-c", str(conf), "-e", f"{folder}/{name}.log"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, **dict(environment)})
        pid, end = folder / f"{name}.pid", time.monotonic() + 60
        while True:
            assert time.monotonic() < end, "nginx does not start"
            try:
                main = int(pid.read_text())
                children = pathlib.Path(f"/proc/{main}/task/{main}/children").read_text().split()
                self.worker = int(children[0]) if forks else main
                break
            except (OSError, ValueError, IndexError):
                time.sleep(0.05)
        self.main = main
        self.clients = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(CLIENTS)]

    def answer(self, request):
        """The answer to one request on a connection of its own, without its date."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as one:
            one.sendall(request.encode().replace(b"\n", b"\r\n"))
            got = b"".join(iter(lambda: one.recv(65536), b""))
        return b"\r\n".join(line for line in got.split(b"\r\n") if not line.startswith(b"Date:"))

    def burst(self, request, size):
        for one in self.clients:
            one.sendall(request)
        for one in self.clients:
            left = size
            while left > 0:
                got = one.recv(left)
                assert got, "the server closed a connection"
                left -= len(got)

    def cpu(self):
        return int(pathlib.Path(f"/proc/{self.worker}/schedstat").read_text().split()[0])

    def stop(self):
        # The main process first: it would start another worker.
        for pid in (self.main, self.worker):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        self.process.wait()


def serves_right(servers):
    """Whether all servers answer the same; how many requests."""
    requests = []
    for path in ("/f", "/empty", "/large", "/none", "/../f", "/" + "a" * 9000):
        for more in ("", "Range: bytes=3-40\n", "If-None-Match: *\n", "X: " + "y" * 4000 + "\n"):
            requests += [f"{how} {path} HTTP/1.1\nHost: a\nConnection: close\n{more}\n" for how in ("GET", "HEAD", "POST", "BAD")]
    wanted = [servers[0].answer(one) for one in requests]
    wrong = sum(server.answer(one) != right for server in servers[1:] for one, right in zip(requests, wanted))
    return len(requests), wrong


def costs(servers, request, bursts, rounds):
    """CPU time of a request, ns: a row for each round, a column for each server."""
    one = servers[0].clients[0]
    one.settimeout(0.5)
    one.sendall(request)
    size = 0
    try:
        while got := one.recv(65536):
            size += len(got)
    except TimeoutError:
        one.settimeout(None)
    times = []
    for _ in range(rounds):
        row = [0.0] * len(servers)
        for nth in random.sample(range(len(servers)), len(servers)):
            before = servers[nth].cpu()
            for _ in range(bursts):
                servers[nth].burst(request, size)
            row[nth] = (servers[nth].cpu() - before) / (CLIENTS * bursts)
        times.append(row)
    return times


def shows(what, names, starts):
    """Prints a row for each server; of each start there are the rows of `costs`."""
    for nth, name in enumerate(names):
        ratios = [[row[nth] / row[0] - 1 for row in rows] for rows in starts]
        middle = lambda some: statistics.median(ratio for one in some for ratio in one)
        spread = sorted(middle(random.choices(ratios, k=len(ratios))) for _ in range(1000))
        cpu = statistics.median(row[nth] for rows in starts for row in rows)
        n = sum(map(len, starts))
        print(f"{what}, {name}: {cpu:.0f} ns a request, {middle(ratios):+.2%} ({spread[25]:+.2%} to {spread[974]:+.2%}), n={n}")


def instructions(program, folder):
    """Instructions of a request, by valgrind."""
    # Without what clang says for debuggers, which not each valgrind can read.
    bare = folder / "bare"
    subprocess.run(["strip", "-g", "-o", str(bare), str(program)], check=True)
    request, bursts, _ = next(iter(REQUESTS.values()))
    counts = []
    for rounds in (1, 1 + COUNTED // (CLIENTS * bursts)):
        out = folder / "instructions"
        server = Server(bare, folder, ("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"), forks=False)
        costs([server], request, bursts, rounds)
        server.process.terminate()
        server.process.wait()
        counts.append(int(re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE).group(1)))
    return (counts[1] - counts[0]) / COUNTED


def finds(program, folder, orbit):
    """The first report of a hang after 5,000 requests that were answered."""
    events = folder / "events.jsonl"
    server = Server(program, folder, (orbit, "watch", "--events", str(events), "--"))
    try:
        costs([server], *next(iter(REQUESTS.values()))[:2], 20)
        time.sleep(2)
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
            end = time.monotonic() + 120
            while time.monotonic() < end:
                for line in events.read_text().splitlines():
                    event = json.loads(line)
                    if event["event"] == "hang":
                        return f"{event['section']}: {event['why']}"
                time.sleep(0.1)
        return "not found"
    finally:
        server.stop()


def main():
    source, pass_, library, orbit = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 1000
    starts = int(sys.argv[6]) if len(sys.argv) > 6 else 10
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        html = folder / "html"
        html.mkdir()
        for name, size in (("f", 612), ("hang", 612), ("empty", 0), ("large", 1_000_000)):
            (html / name).write_bytes(b"x" * size)
        page = random.Random(1).choices("a process waits for another that holds the lock it needs".split(), k=20000)
        (html / "page.html").write_text(" ".join(page)[:100_000])
        for file in html.iterdir():
            os.utime(file, (0, 0))
        folder.chmod(0o755)
        programs = {mode: build(source, folder / mode.replace(" ", "-"), words, pass_, library) for mode, words in MODES.items()}
        names = [*programs, "unmarked"]
        times = {what: [] for what in REQUESTS}
        for start in range(starts):
            servers = []
            try:
                servers += [Server(programs[name], folder) for name in names]
                if start == 0:
                    asked, wrong = serves_right(servers)
                    print(f"{asked} kinds of requests to each server: {wrong} answers differ")
                for what, (request, bursts, each) in REQUESTS.items():
                    times[what].append(costs(servers, request, bursts, rounds // each // starts))
            finally:
                for server in servers:
                    server.stop()
        for what, all_starts in times.items():
            shows(what, names, all_starts)
        if shutil.which("valgrind"):
            counts = {name: [instructions(program, folder) for _ in range(5)] for name, program in programs.items()}
            least = statistics.median(counts["unmarked"])
            for name, some in counts.items():
                middle = statistics.median(some)
                print(f"{name}: {middle:.0f} instructions a request ({min(some):.0f} to {max(some):.0f}), {middle / least - 1:+.2%}, n=5")
        hung = folder / "hung"
        shutil.copytree(source, hung)
        place = hung / "src/http/ngx_http_header_filter_module.c"
        text = place.read_text()
        second = text.index(LOOP, text.index(LOOP) + 1) + len(LOOP)
        second = text.index("        if (header[i].hash == 0) {", second)
        place.write_text(text[:second] + HANG + text[second:])
        program = build(hung, folder / "hung-built", MODES["six sections"], pass_, library)
        print(f"a loop without an end in the filter of headers: {finds(program, folder, str(orbit))}")


if __name__ == "__main__":
    main()
