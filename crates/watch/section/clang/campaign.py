#!/usr/bin/env python3
"""The same hangs in Debian's nginx, with sections that the pass marks and with sections of the same functions marked in the source:
which does `orbit watch` find in a section of those functions?

    apt-get source nginx
    campaign.py SOURCE PASS LIBRARY ORBIT [RUNS]

A hang is put into each of PLACES, as a loop without an end (busy) and as a lock that nobody releases (blocked); the server hangs in the
HANGS_AT-th pass. Each is run RUNS (1) times with each kind of marks, in an order drawn anew. Printed is how many were reported, in
how many of these the report named a section of a chosen function, and the innermost one, and the time for which the hang had been
seen (`since_ms`).
"""

import collections
import json
import pathlib
import random
import shutil
import socket
import statistics
import sys
import tempfile
import time

from nginx import CHOSEN, REQUESTS, Server, build

HANGS_AT = 4000
# A file, what stands before the place, and a function within which it is searched for.
EPOLL, TIMER, CORE = "event/modules/ngx_epoll_module.c", "event/ngx_event_timer.c", "http/ngx_http_core_module.c"
REQUEST, OUTPUT, PARSE = "http/ngx_http_request.c", "core/ngx_output_chain.c", "http/ngx_http_parse.c"
FOR_EVER = "    for ( ;; ) {\n"
LOOPS = [
    (EPOLL, "    for (i = 0; i < events; i++) {\n", "ngx_epoll_process_events"),
    (TIMER, FOR_EVER, "ngx_event_expire_timers"),
    (CORE, "    while (ph[r->phase_handler].checker) {\n", "ngx_http_core_run_phases"),
    (REQUEST, FOR_EVER, "ngx_http_process_request_line"),
    (REQUEST, FOR_EVER, "ngx_http_process_request_headers"),
    (OUTPUT, FOR_EVER, "ngx_output_chain"),
]
# Functions that such loops call, at their last statement of declarations.
CALLED = [
    ("http/ngx_http_header_filter_module.c", "    if (r->header_sent) {\n", "ngx_http_header_filter"),
    ("http/modules/ngx_http_static_module.c", "    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD|NGX_HTTP_POST))) {\n", "ngx_http_static_handler"),
    ("http/ngx_http_write_filter_module.c", "    c = r->connection;\n", "ngx_http_write_filter"),
    (PARSE, "    state = r->state;\n", "ngx_http_parse_request_line"),
    (PARSE, "    state = r->state;\n", "ngx_http_parse_header_line"),
    ("http/modules/ngx_http_log_module.c", "    lcf = ngx_http_get_module_loc_conf(r, ngx_http_log_module);\n", "ngx_http_log_handler"),
]
# Of functions without a section of their own, those whose section they are called in.
INNERMOST = {
    "ngx_http_header_filter": ["ngx_http_core_run_phases"],
    "ngx_http_static_handler": ["ngx_http_core_run_phases"],
    "ngx_http_write_filter": ["ngx_http_core_run_phases", "ngx_output_chain"],
    "ngx_http_parse_request_line": ["ngx_http_process_request_line"],
    "ngx_http_parse_header_line": ["ngx_http_process_request_headers"],
    "ngx_http_log_handler": ["ngx_http_core_run_phases"],
}
PLACES = [name for _, _, name in LOOPS + CALLED]
HEAD = """
extern int rmk_place, rmk_left, rmk_blocks;
extern void rmk_hang(void);
#define RMK_PLACE(n) do { if (rmk_place == n && --rmk_left == 0) rmk_hang(); } while (0)
"""
# As a person marks a block in C: left by whatever way.
BY_HAND = """
#include <rmk.h>
static inline void rmk_by_hand_left(int *section) { rmk_section_leave(*section, 0); }
#define RMK_BY_HAND(name) \\
    static int rmk_number = -2; \\
    if (rmk_number == -2) rmk_number = rmk_section(name); \\
    __attribute__((cleanup(rmk_by_hand_left))) int rmk_inside = rmk_number; \\
    rmk_section_enter(rmk_inside)
"""
HANGS = """
#include <pthread.h>
#include <stdlib.h>
int rmk_place = -1, rmk_left, rmk_blocks;
void rmk_hang(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    volatile unsigned turns = 0;
    pthread_mutex_lock(&lock);
    if (rmk_blocks)
        pthread_mutex_lock(&lock);
    for (;;)
        turns++;
}
__attribute__((constructor)) static void rmk_begin(void)
{
    const char *place = getenv("RMK_PLACE"), *left = getenv("RMK_LEFT"), *blocks = getenv("RMK_BLOCKS");
    rmk_place = place ? atoi(place) : -1;
    rmk_left = left ? atoi(left) : 0;
    rmk_blocks = blocks && atoi(blocks);
}
"""


def within(text, function, what):
    """Where a text begins in the definition of a function, whose name begins a line there alone."""
    return text.index(what, text.index(f"\n{function}("))


def prepare(source, to, by_hand):
    """A copy of the source with the places, and with marks if they are to be the source's own."""
    shutil.copytree(source, to, symlinks=True)
    (to / "src/core/rmk_hangs.h").write_text(HEAD + (BY_HAND if by_hand else ""))
    (to / "src/core/rmk_hangs.c").write_text(HANGS)
    sources = to / "auto/sources"
    sources.write_text(sources.read_text().replace("src/core/nginx.c", "src/core/nginx.c src/core/rmk_hangs.c", 1))
    for nth, (file, before, function) in enumerate(LOOPS + CALLED):
        path = to / "src" / file
        text = path.read_text()
        if "rmk_hangs.h" not in text:
            first = text.index("#include")
            text = text[:first] + '#include "rmk_hangs.h"\n' + text[first:]
        at = within(text, function, before)
        is_loop = (file, before, function) in LOOPS
        mark = f'RMK_BY_HAND("{function}");\n' if by_hand and is_loop else ""
        # In the loop over events each event is an execution: `epoll_wait` is before it.
        is_each = function == "ngx_epoll_process_events"
        hang = f"RMK_PLACE({nth});\n"
        inside = at + len(before) if is_loop or before.endswith(";\n") else at
        text = text[:inside] + (mark if is_each else "") + hang + text[inside:]
        if mark and not is_each:
            text = text[:at] + mark + text[at:]
        path.write_text(text)


def one(program, folder, orbit, place, blocks):
    """The report of a hang in this place: its section, certainty, seconds from the hang on; nothing if there was none."""
    events = folder / "events.jsonl"
    events.write_text("")
    settings = {"RMK_PLACE": str(place), "RMK_LEFT": str(HANGS_AT), "RMK_BLOCKS": str(int(blocks))}
    server = Server(program, folder, (orbit, "watch", "--events", str(events), "--"), environment=settings.items())
    request = next(iter(REQUESTS.values()))[0]
    hung = None
    try:
        end = time.monotonic() + 60
        for client in server.clients:
            client.settimeout(2)
        while time.monotonic() < end:
            if hung is None:
                try:
                    for client in server.clients:
                        client.sendall(request)
                    for client in server.clients:
                        last = time.monotonic()
                        if not client.recv(65536):
                            raise TimeoutError
                except OSError:
                    hung = last
            for line in events.read_text().splitlines():
                event = json.loads(line) if line.endswith("}") else {}
                if event.get("event") == "hang" and (hung is not None or event["section"]):
                    return event["section"], event["sure"], event["since_ms"] / 1000
            time.sleep(0.002 if hung is None else 0.05)
        return None
    finally:
        server.stop()


def summary(all_):
    """Of places with their reports: how many were reported, in a section, in the innermost one; when."""
    reports = [(place, report) for place, report in all_ if report]
    # The record has room for 63 bytes of a name.
    is_in = lambda report, names: report[0] and any(name.startswith(report[0].split()[-1]) for name in names)
    in_section = sum(bool(is_in(report, CHOSEN.split())) for _, report in reports)
    innermost = sum(bool(is_in(report, INNERMOST.get(place, [place]))) for place, report in reports)
    times = sorted(report[2] for _, report in reports)
    spread = f"; {statistics.median(times):.2f} s ({times[0]:.2f} to {times[-1]:.2f})" if times else ""
    return f"{len(reports)} of {len(all_)} reported, {in_section} in a section, {innermost} of these the innermost{spread}"


def main():
    source, pass_, library, orbit = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
    runs = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    include = pathlib.Path(__file__).resolve().parent.parent / "include"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        (folder / "html").mkdir()
        (folder / "html/f").write_bytes(b"x" * 612)
        words = " ".join(f"functions={name}" for name in CHOSEN.split())
        programs = {}
        for kind, by in (("the pass", pass_), ("the source", None)):
            to = folder / kind.replace(" ", "-")
            prepare(source, to, by is None)
            programs[kind] = build(to, to, words, by, library, f" -I{include} -Wno-unused")
        todo = [(kind, place, blocks) for kind in programs for place in range(len(PLACES)) for blocks in (False, True)] * runs
        random.shuffle(todo)
        found = collections.defaultdict(list)
        for kind, place, blocks in todo:
            report = one(programs[kind], folder, str(orbit), place, blocks)
            found[kind, blocks].append((PLACES[place], report))
            print(f"marked by {kind}, {'lock' if blocks else 'loop'} in {PLACES[place]}: {report}", flush=True)
        for (kind, blocks), all_ in sorted(found.items()):
            print(f"{'locks' if blocks else 'loops'}, marked by {kind}: {summary(all_)}")


if __name__ == "__main__":
    main()
