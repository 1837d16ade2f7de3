#!/usr/bin/env python3
"""What crashes cost: servers of the catalogue under `orbit keep`, and with a restart after `kill -9` as the control.

    outside/faults.py [--orbit FILE] [--seconds N] [PROGRAM...]

A program takes part if its file has a table [faults]: `prepare`, `keep` (options of `orbit keep`), `client` (a command that uses the
server for @SECONDS@ seconds through crashes and prints counts as JSON), `poison` (words for the client that make it send the
input that kills), `kinds` (else all) and `data` (else the catalogue's check). Kinds: a fatal signal from outside, an abort, a poison input, pointers of the program's data that are
set to zero. Each happens once a second. The data check of the catalogue runs at the end, after an ordinary stop.

A server that the keeper gives up is started again, as a supervisor does; its status must be the crash's own.
Fails if under `keep` nothing crashed, an answer was wrong, lost, doubled or foreign (lost: unless it was started again and the control
loses as well), if the data check fails, or if the server is gone. What the control lost stands beside it. What a pointer set to zero does before the crash is the program's own doing: of
that kind only a server that is gone counts as failed, in the control too.
"""

import argparse
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time

import catalogue
import cells
import conditions
import processes
import run

NOT_KEPT = "kill -9, restart"
KINDS = ("signal", "abort", "poison", "pointer")
POINTERS = 8  # that are set to zero at once
HARM = ("wrong", "lost", "doubled", "foreign")


def zero_pointers(pid, source):
    """Sets to zero some words of the program's own data that point into its heap: one alone is seldom used at once."""
    maps = [line.split() for line in open(f"/proc/{pid}/maps", encoding="utf-8")]
    program = os.readlink(f"/proc/{pid}/exe")
    ranges = [(parts, *(int(each, 16) for each in parts[0].split("-"))) for parts in maps]
    heap = [(low, high) for parts, low, high in ranges if parts[1] == "rw-p" and (parts[5:] or ["[heap]"])[0] == "[heap]"]
    data = [(low, high) for parts, low, high in ranges if parts[-1] == program and parts[1].startswith("rw")]
    # What the program's file leaves to be zero at the start is a mapping without a name behind its data.
    ends = {high for _, high in data}
    data += [(low, high) for parts, low, high in ranges if low in ends and len(parts) == 5]
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        found = []
        for low, high in data:
            memory.seek(low)
            words = memory.read(high - low)
            for at, (word,) in enumerate(struct.iter_unpack("<Q", words[: len(words) // 8 * 8])):
                if any(start <= word < end for start, end in heap):
                    found.append(low + at * 8)
        for at in source.sample(found, min(len(found), POINTERS)):
            memory.seek(at)
            memory.write(bytes(8))


def server_of(running, program, source):
    """A process of the server's: of a family that is kept any one, else the first."""
    names = {os.path.basename(program.command[0])[:15]}
    found = [pid for pid, name in sorted(processes.below(running.pid).items()) if name in names]
    if "--family" in program.faults.get("keep", []):
        return source.choice(found or [running.pid])
    return next(iter(found), running.pid)


def start(place, wrap):
    """Starts it until it is ready: what its processes held may not be free at once."""
    argv = [place.filled(part) for part in place.program.command]
    paths = [os.path.join(place.logs, name) for name in ("stdout", "stderr")]
    limit = time.monotonic() + 30
    while True:
        running = processes.Running([*place.prefix, *wrap, *argv], place.scratch, place.env, *paths)
        while not running.has_exited(0.02):
            if place.is_ready():
                return running
            if time.monotonic() > limit:
                break
        if time.monotonic() > limit:
            raise RuntimeError(f"{place.program.name} does not become ready: {cells.read(paths[1])[-300:]}")
        running.status()


def experiment(place, kind, is_kept, seconds):
    """One row: what the client counted, the data check, how often the server crashed and had to be restarted."""
    program, source = place.program, random.Random(7)
    place.make()
    if "prepare" in program.faults:
        status, output = processes.run_shell(place.filled(program.faults["prepare"]), place.scratch, place.env, 60, place.prefix)
        if status != 0:
            raise RuntimeError(f"{program.name}: prepare ended with {status}: {output[-500:]}")
    events = os.path.join(place.logs, "events")
    options = ["-q", "--every", "200ms", "--events", events, *program.faults.get("keep", [])]
    wrap = [place.orbit, "keep", *options, "--"] if is_kept else []
    running = start(place, wrap)
    client = place.filled(program.faults["client"]).replace("@SECONDS@", str(seconds))
    if kind == "poison" and is_kept:
        client += " " + program.faults["poison"]
    user = subprocess.Popen([*place.prefix, "/bin/sh", "-c", client], cwd=place.scratch, env=place.env, stdout=subprocess.PIPE)
    end, crashes, restarts, statuses = time.monotonic() + seconds - 1, 0, 0, []
    while time.monotonic() < end:
        if running.has_exited(1.0):
            # A supervisor's part: what the keeper gave up is started again, as the control is.
            statuses.append(running.status())
            restarts += 1
            running = start(place, wrap)
        elif kind != "poison" or not is_kept:
            pid = server_of(running, program, source) if is_kept else running.pid
            crashes += 1
            if not is_kept:
                os.kill(pid, signal.SIGKILL)
            elif kind == "pointer":
                zero_pointers(pid, source)
            else:
                os.kill(pid, signal.SIGSEGV if kind == "signal" else signal.SIGABRT)
    output, _ = user.communicate()
    row = {"program": program.name, "kind": kind, "kept": is_kept, "crashes": crashes, "restarts": restarts}
    row |= dict.fromkeys(HARM, 0) | json.loads(output)
    if running.has_exited():
        statuses.append(running.status())
        restarts += 1
        running = start(place, wrap)
    # A keeper that gives up ends as the program would have: by the signal.
    row["restarts"], row["ends"] = restarts, sorted(set(statuses))
    row["gone"] = running.has_exited()
    if not row["gone"]:
        cells.ask_to_stop(place, running, cells.STOP_SECONDS)
    processes.end_all()
    if is_kept:
        told = [event["event"] for event in conditions.events_of(events)]
        row["crashes"], row["recovered"] = told.count("crash"), told.count("recovered")
    check = program.faults.get("data", program.data) or "true"
    status, text = processes.run_shell(place.filled(check), place.scratch, place.env, 60, place.prefix)
    row["data"] = "right" if status == 0 else f"wrong: {text.strip().splitlines()[-1:]}"
    return row


def has_failed(row, control):
    """What a restart after `kill -9` loses as well is the program's own; a keeper that gives up makes the same restart needed."""
    if not row["kept"] or row["kind"] == "pointer":
        return row["gone"]
    harm = [name for name in HARM if row[name] and not (name == "lost" and row["restarts"] and control["lost"])]
    untrue = set(row["ends"]) - {128 + signal.SIGSEGV, 128 + signal.SIGABRT}
    return bool(not row["crashes"] or row["gone"] or row["data"] != "right" or harm or untrue)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--orbit", default=os.path.join(run.TOP, "target/release/orbit"))
    parser.add_argument("--json", default="", help="where the rows go, one a line")
    parser.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args()
    processes.adopt_orphans()
    programs = [
        each for each in catalogue.load()
        if each.faults and (not options.programs or each.name in options.programs) and not each.missing()
    ]
    rows = []
    with tempfile.TemporaryDirectory(prefix="orbit-faults.", ignore_cleanup_errors=True) as root:
        run.prepare(root, options.orbit)
        for program in programs:
            place = cells.Place(root, program, os.path.join(root, "orbit"))
            control = None
            for kind, is_kept in [(NOT_KEPT, False), *((kind, True) for kind in program.faults.get("kinds", KINDS))]:
                try:
                    row = experiment(place, kind, is_kept, options.seconds)
                finally:
                    processes.end_all()
                control = control or row
                row["has_failed"] = has_failed(row, control)
                rows.append(row)
                print(json.dumps(row), "FAILED" if row["has_failed"] else "", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    failed = sum(row["has_failed"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
