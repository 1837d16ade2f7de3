#!/usr/bin/env python3
"""Fills the table of what CI takes in CONTRIBUTING.md, from the output of a run of CI.

    scripts/times.py LOG [--on TEXT]      TEXT: the machine, as the table's head names it

LOG is what `.ci/run` printed. Suites of one folder of crates are one row; those that run two at a time are counted as if one after
another. What the log does not have stays "not measured".
"""

import argparse
import glob
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(TOP, "CONTRIBUTING.md")
BEGIN, END = "<!-- times: scripts/times.py -->\n", "<!-- end of times -->\n"

# The parts of `make test` in the order in which they run, with what is in them.
PARTS = (
    ("build", "building all tests"),
    ("crates/base", "tests, unit tests among them, of `crates/base`"),
    ("crates/library", "of `crates/library`"),
    ("crates/core", "of `crates/core`"),
    ("crates/watch", "of `crates/watch`"),
    ("crates/keep", "of `crates/keep`"),
    ("crates/hijack", "of `crates/hijack`"),
    ("crates/serve", "of `crates/serve`"),
    ("crates/agent", "of `crates/agent`"),
    ("crates/cli", "of `crates/cli`"),
    ("tools", "of `tools`"),
    ("apps", "of `apps`: ports into servers, two suites at a time"),
    ("documents", "examples in documents"),
    ("outside", "other people's programs, short form: twelve, each command"),
    ("contained", "the library's again, as an ordinary user under filters"),
)


def folders():
    """The folder of each package: `crates/keep`, `apps`."""
    found = {}
    paths = [path for top in ("crates", "apps", "tools") for path in glob.glob(os.path.join(TOP, top, "**/Cargo.toml"), recursive=True)]
    for path in paths:
        with open(path, encoding="utf-8") as file:
            name = re.search(r'^name = "([^"]+)"', file.read(), re.MULTILINE)
        words = os.path.relpath(path, TOP).split("/")
        if name:
            found[name.group(1)] = words[0] if words[0] != "crates" else "/".join(words[:2])
    return found


def seconds_of(log):
    """Seconds by part: `make demo`, `make lint`, `make test`, and the parts of PARTS."""
    seconds, where = {}, folders()
    for line in log.splitlines():
        if found := re.fullmatch(r"(make \w+): (\d+) s", line):
            seconds[found.group(1)] = int(found.group(2))
        elif found := re.fullmatch(r"built in (\d+) s", line):
            seconds["build"] = int(found.group(1))
        elif found := re.fullmatch(r"(\S.*?) +\d+ passed, \d+ failed, \d+ skipped \((\d+) s.*\)", line):
            name = found.group(1)
            part = "contained" if name.endswith(", contained") else where.get(name)
            part = part or ("documents" if name == "examples in documents" else "outside" if name.startswith("outside") else None)
            if part is None:
                sys.exit(f"scripts/times.py: no part for {name!r}")
            seconds[part] = seconds.get(part, 0) + int(found.group(2))
    return seconds


def shown(seconds):
    if seconds is None:
        return "not measured"
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min {seconds % 60:02} s"


def table(seconds, machine):
    lines = [f"| part | when | {machine} |\n|---|---|---|\n"]
    for part in ("make demo", "make lint", "make test"):
        lines.append(f"| `{part}` | each change | {shown(seconds.get(part))} |\n")
    for part, text in PARTS:
        lines.append(f"| – {text} | each change | {shown(seconds.get(part))} |\n")
    return "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("--on", default=f"time on {os.cpu_count()} cores")
    options = parser.parse_args()
    with open(options.log, encoding="utf-8", errors="replace") as file:
        seconds = seconds_of(file.read())
    with open(PAGE, encoding="utf-8") as file:
        before, begin, rest = file.read().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"scripts/times.py: CONTRIBUTING.md has no lines {BEGIN.strip()} and {END.strip()}")
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(before + begin + table(seconds, options.on) + end + after)


if __name__ == "__main__":
    main()
