#!/usr/bin/env python3
"""Runs other people's programs under each of Orbit's commands and compares what they gave with a run without.

    outside/run.py                     all programs, all columns; writes target/outside.json
    outside/run.py --short             the short form, as `make test` has it
    outside/run.py redis --columns keep,hijack
    outside/run.py redis --onto target/outside.jsonl --json target/outside.jsonl --page docs/compatibility.md
    outside/run.py --list

Needs the command (`--orbit`, else target/release/orbit) and the programs, which `outside/run.py --install` installs. A cell
is equal, differs, refused (with a sentence, before the program starts), or not applicable. The last line counts them:
equal and refused ones passed, those that differ failed; a program that is not installed is skipped. A column that refuses
more than one program in twelve, or proves nothing of more than half, has failed as well.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import catalogue
import cells
import compare
import conditions
import page
import processes

TOP = os.path.dirname(catalogue.HERE)
# Of the programs, one in so many may have such a cell in a column.
MOST = ((compare.REFUSED, 12), (compare.NOT_APPLICABLE, 2))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of files in outside/programs; all, if left out")
    parser.add_argument("--short", action="store_true", help="only programs of the short form")
    parser.add_argument("--columns", default=",".join(catalogue.COLUMNS), help="separated by commas")
    parser.add_argument("--orbit", default=os.path.join(TOP, "target/release/orbit"), help="the command")
    parser.add_argument("--json", default="", help="where the cells go, one a line")
    parser.add_argument("--onto", default="", help="a file of --json: its cells stay where they are not run again")
    parser.add_argument("--page", default="", help="writes the page for users to this file")
    parser.add_argument("--faults", default="", help="a file of `outside/faults.py --json`, for the page")
    parser.add_argument("--install", action="store_true", help="installs the packages, and runs nothing")
    parser.add_argument("--list", action="store_true", help="lists the programs, and runs nothing")
    parser.add_argument("--row", nargs=2, metavar=("ROOT", "PROGRAM"), help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(options):
    """The programs that were asked for."""
    programs = catalogue.load()
    names = {program.name for program in programs}
    unknown = [name for name in options.programs if name not in names]
    if unknown:
        sys.exit(f"outside/run.py: no program {', '.join(unknown)}; there are {', '.join(sorted(names))}")
    return [
        program for program in programs
        if (not options.programs or program.name in options.programs) and (program.short or not options.short)
    ]


def prepare(root, orbit):
    """The command and the service, where an ordinary user may read them."""
    os.chmod(root, 0o755)
    shutil.copy(orbit, os.path.join(root, "orbit"))
    include = os.path.join(TOP, "crates/serve/services/include")
    subprocess.run(
        ["cc", "-O2", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-fno-stack-protector", f"-I{include}",
         "-Wl,--hash-style=sysv", "-Wl,--build-id=none", f"-Wl,-T,{include}/orbit_service.ld",
         "-o", os.path.join(root, "tick.so"), os.path.join(catalogue.HERE, "tick.c")],
        check=True,
    )


def row_in_this_process(root, name, columns):
    """One program's cells, a line of JSON each. A process of its own: it adopts whatever the program leaves behind."""
    processes.adopt_orphans()
    program = next(each for each in catalogue.load() if each.name == name)
    place = cells.Place(root, program, os.path.join(root, "orbit"))
    for column, state, how, seconds, said in cells.row(place, columns):
        print(json.dumps({
            "program": name, "kind": program.kind, "column": column, "state": state, "how": how,
            "seconds": round(seconds, 2), "said": said,
        }), flush=True)
    shutil.rmtree(place.base, ignore_errors=True)


def rows(options, programs, columns, root):
    """Runs all programs, shows each cell with the time left, and returns the cells."""
    done, began = [], time.monotonic()
    expected = len(programs) * len(columns)
    for index, program in enumerate(programs):
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--columns", ",".join(columns), "--row", root, program.name],
            stdout=subprocess.PIPE, text=True,
        )
        seen = 0
        for line in child.stdout:
            cell = json.loads(line)
            done.append(cell)
            seen += 1
            passed = index * len(columns) + seen
            left = (time.monotonic() - began) / passed * (expected - passed) / 60
            how = f": {cell['how']}" if cell["how"] else ""
            print(f"[{passed}/{expected}, {left:.0f} min left] {program.name}, {cell['column']}: {cell['state']}{how}"
                  f" ({cell['seconds']} s)", flush=True)
            if cell["state"] == compare.DIFFERS:
                print(f"to run it again: outside/run.py {program.name} --columns '{cell['column']}'", flush=True)
        if child.wait() != 0:
            done.append({"program": program.name, "kind": program.kind, "column": "bare", "state": compare.DIFFERS,
                         "how": "the runner failed", "seconds": 0, "said": []})
            print(f"{program.name}: the runner failed", flush=True)
    return done


def lines_of(path):
    """What the lines of a file of JSON say; nothing where there is no file."""
    if not path:
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def merged(path, done):
    """The cells of an earlier run, with those of this one in their place."""
    cells_by_key = {(cell["program"], cell["column"]): cell for cell in [*lines_of(path), *done]}
    return list(cells_by_key.values())


def poor_columns(done):
    """A sentence for each column that refuses, or proves nothing of, more programs than it may."""
    for column in catalogue.COLUMNS:
        states = [cell["state"] for cell in done if cell["column"] == column]
        for state, share in MOST:
            if states.count(state) * share > max(len(states), share):
                yield f"{column}: {states.count(state)} of {len(states)} programs {state}; one in {share} at most"


def main():
    # A shell starts what runs in the background with these ignored, which the programs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    options = arguments()
    columns = [column.strip() for column in options.columns.split(",")]
    for column in columns:
        if column not in catalogue.COLUMNS:
            sys.exit(f"outside/run.py: no column {column!r}; there are {', '.join(catalogue.COLUMNS)}")
    if options.row:
        row_in_this_process(*options.row, columns)
        return
    programs = chosen(options)
    if options.list:
        for program in programs:
            print(f"{program.name:16} {program.kind:24} {' '.join(program.missing()) and 'not installed'}")
        return
    if options.install:
        need = sorted({package for program in programs for package in program.missing()})
        if need:
            os.execv(os.path.join(TOP, "scripts/packages.sh"), ["packages.sh", "--install", "yes", *need])
        return
    skipped = [program for program in programs if program.missing()]
    for program in skipped:
        print(f"SKIP: needs {' '.join(program.missing())} ({program.name})")
    programs = [program for program in programs if program not in skipped]
    lacking = [column for column in columns if conditions.CONDITIONS[column].missing()]
    for column in lacking:
        print(f"SKIP: needs {conditions.CONDITIONS[column].missing()} (column {column})")
        columns.remove(column)
    with tempfile.TemporaryDirectory(prefix="orbit-outside.", ignore_cleanup_errors=True) as root:
        prepare(root, options.orbit)
        done = rows(options, programs, columns, root)
    with open(options.orbit, "rb") as file:
        build = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    for cell in done:
        cell["build"] = build
    if options.onto:
        done = merged(options.onto, done)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(cell) + "\n" for cell in done)
    if options.page:
        page.write(done, lines_of(options.faults), options.page)
    states = [cell["state"] for cell in done]
    poor = list(poor_columns(done))
    for sentence in poor:
        print(sentence)
    failed = states.count(compare.DIFFERS) + len(poor)
    print(f"{states.count(compare.EQUAL) + states.count(compare.REFUSED)} passed, {failed} failed, {len(skipped) + len(lacking)} skipped")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
