#!/usr/bin/env python3
"""What crashes cost: servers of the catalogue under `orbit keep` in several states, and a restart after `kill -9` as the control.

    outside/faults.py [--orbit FILE] [--seconds N] [PROGRAM...]

A program takes part if its file has a table [faults]: `client` (a command that uses the server for @SECONDS@ seconds through crashes and
prints counts as JSON), and where they differ from the catalogue's or the default: `command`, `commands` (a state's own), `ready`, `prepare`, `states` (name ->
options of `orbit keep`; else exact without options), `poison` (words for the client that make it send the input that kills), `half` (words
that make it send requests in two parts, a crash between them), `calm` (words that make it send some hundred a second), `kinds`,
`data` (a check), `in_memory` (see below) and `ends` (statuses with which its own handlers end it at a crash). Kinds, each once a second:

    signal, abort    a fatal signal from outside
    burst            three of them within some milliseconds: crashes while it is put back
    poison           an input that kills, beside the load
    half             a signal while half a request has come
    calm             a signal beside a hundred requests a second
    pointer          pointers of the program's data that are set to zero

A server that the keeper gives up is started again, as a supervisor does; its status must be the crash's own.
**The gate**: under `keep` nothing is wrong, lost, doubled, foreign, or hung for more than 5 s (lost and doubled: unless it was started
again and `in_memory` of its table says that a restart loses what was answered last), the data check passes, the server is there at the end, and it has crashed at all. What a
pointer set to zero does before the crash is the program's own doing: of that kind only a server that is gone counts, in the control too.
"""

import argparse
import dataclasses
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
KINDS = ("signal", "abort", "burst", "poison", "half", "calm", "pointer")
POINTERS = 8  # that are set to zero at once
OF_CLIENT = ("poison", "half", "calm")  # whose words the client is given
BURST = (0.002, 0.002)  # pauses between its signals, s
HARM = ("wrong", "lost", "doubled", "foreign", "hung")
SHARED = ("lost", "doubled")  # what a restart may cost as well


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


def server_of(running, program, options, source):
    """A process of the server's: of a family that is kept any one, else the first."""
    names = {os.path.basename(program.command[0])[:15]}
    found = [pid for pid, name in sorted(processes.below(running.pid).items()) if name in names]
    if "--family" in options:
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


def crash(kind, pid, source):
    """Makes it crash in this way."""
    if kind == "pointer":
        zero_pointers(pid, source)
        return
    for pause in (0, *(BURST if kind == "burst" else ())):
        time.sleep(pause)
        try:
            os.kill(pid, signal.SIGABRT if kind == "abort" else signal.SIGSEGV)
        except ProcessLookupError:
            return


def start_again(place, wrap, user):
    """As a supervisor does: all that is left of the server is ended before, which is what is not of its user."""
    for pid in set(processes.below(os.getpid())) - set(processes.below(user.pid)) - {user.pid}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return start(place, wrap)


def experiment(place, kind, state, seconds):
    """One row: what the client counted, the data check, how often the server crashed and had to be restarted. `state`: None for the
    control, else one of the program's."""
    program, source = place.program, random.Random(7)
    place.make()
    if "prepare" in program.faults:
        status, output = processes.run_shell(place.filled(program.faults["prepare"]), place.scratch, place.env, 60, place.prefix)
        if status != 0:
            raise RuntimeError(f"{program.name}: prepare ended with {status}: {output[-500:]}")
    events = os.path.join(place.logs, "events")
    options = states_of(program)[state] if state else []
    wrap = [place.orbit, "keep", "-q", "--every", "200ms", "--events", events, *options, "--"] if state else []
    running = start(place, wrap)
    client = place.filled(program.faults["client"]).replace("@SECONDS@", str(seconds))
    if state and kind in OF_CLIENT:
        client += " " + program.faults[kind]
    user = subprocess.Popen([*place.prefix, "/bin/sh", "-c", client], cwd=place.scratch, env=place.env, stdout=subprocess.PIPE)
    end, crashes, restarts, statuses = time.monotonic() + seconds - 1, 0, 0, []
    while time.monotonic() < end:
        if running.has_exited(1.0):
            # A supervisor's part: what the keeper gave up is started again, as the control is.
            statuses.append(running.status())
            restarts += 1
            running = start_again(place, wrap, user)
        elif not state:
            crashes += 1
            os.kill(running.pid, signal.SIGKILL)
        elif kind != "poison":
            crash(kind, server_of(running, program, options, source), source)
    output, _ = user.communicate()
    row = {"program": program.name, "kind": kind, "state": state, "options": options, "crashes": crashes, "exact": 0}
    row["own_ends"], row["in_memory"] = program.faults.get("ends", []), program.faults.get("in_memory", False)
    row |= dict.fromkeys((*HARM, "ended"), 0) | json.loads(output)
    if running.has_exited():
        statuses.append(running.status())
        restarts += 1
        running = start_again(place, wrap, user)
    # A keeper that gives up ends as the program would have: by the signal.
    row["restarts"], row["ends"] = restarts, sorted(set(statuses))
    row["gone"] = running.has_exited()
    if not row["gone"]:
        cells.ask_to_stop(place, running, cells.STOP_SECONDS)
    processes.end_all()
    if state:
        found = conditions.events_of(events)
        recovered = [event for event in found if event["event"] == "recovered"]
        row["crashes"] = sum(event["event"] == "crash" for event in found)
        row["why"] = sorted({event["why"] for event in found if event["event"] == "gave-up"})
        row["recovered"], row["exact"] = len(recovered), sum(event.get("exact", False) for event in recovered)
    check = program.faults.get("data", program.data) or "true"
    status, text = processes.run_shell(place.filled(check), place.scratch, place.env, 60, place.prefix)
    row["data"] = "right" if status == 0 else f"wrong: {text.strip().splitlines()[-1:]}"
    return row


def states_of(program):
    return program.faults.get("states", {"exact": []})


def kinds_of(program):
    """What can be done to it, without those that its client cannot do."""
    return [kind for kind in program.faults.get("kinds", KINDS) if kind not in OF_CLIENT or kind in program.faults]


def has_failed(row):
    """What a restart loses is the program's own, where it holds its data in memory; a keeper that gives up makes a restart needed."""
    if not row["state"] or row["kind"] == "pointer":
        return row["gone"]
    harm = [name for name in HARM if row[name] and not (name in SHARED and row["restarts"] and row["in_memory"])]
    untrue = set(row["ends"]) - {128 + signal.SIGSEGV, 128 + signal.SIGABRT} - set(row["own_ends"])
    has_crashed = row["crashes"] or set(row["ends"]) & set(row["own_ends"])
    return bool(not has_crashed or row["gone"] or row["data"] != "right" or harm or untrue)


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
            own = {key: program.faults[key] for key in ("command", "ready") if key in program.faults}
            place = cells.Place(root, dataclasses.replace(program, **own), os.path.join(root, "orbit"))
            common = place.program
            kept = [(kind, state) for state in states_of(program) for kind in kinds_of(program)]
            for kind, state in [(NOT_KEPT, None), *kept]:
                command = program.faults.get("commands", {}).get(state, common.command)
                place.program = dataclasses.replace(common, command=command)
                try:
                    row = experiment(place, kind, state, options.seconds)
                finally:
                    processes.end_all()
                row["has_failed"] = has_failed(row)
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
