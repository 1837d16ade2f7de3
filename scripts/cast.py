#!/usr/bin/env python3
"""Draws the tour as an animated picture: runs `scripts/demo.sh`, and writes what it printed, as it was printed, as one SVG.

    scripts/cast.py [FILE]      docs/demo.svg if no file is named; `make cast` builds first

Text and order are those of the run. Pauses longer than PAUSE are shortened, so that the picture lasts well under a minute. A run
that fails writes nothing and exits with its status.
"""

import html
import os
import pathlib
import pty
import re
import select
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 112, 26
CHARACTER, LINE = 7.2, 17
# Seconds: the longest pause between two lines, the time that each line is worth, and how long the end stays.
PAUSE, STEP, END = 0.9, 0.12, 6.0
COLOURS = {"1": "#ffffff", "31": "#ff7b72", "32": "#7ee787"}


def record(command):
    """The lines that a command printed on a terminal, with seconds since the start; and its exit status."""
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.environ["COLUMNS"] = str(COLUMNS)
        os.execvp(command[0], command)
    lines, rest = [], b""
    while True:
        select.select([terminal], [], [])
        try:
            came = os.read(terminal, 65536)
        except OSError:
            came = b""
        if not came:
            break
        sys.stdout.buffer.write(came)
        sys.stdout.buffer.flush()
        *whole, rest = (rest + came).split(b"\n")
        lines += [(time.monotonic() - began, line.decode("utf-8", "replace").rstrip("\r")) for line in whole]
    _, status = os.waitpid(pid, 0)
    return lines, os.waitstatus_to_exitcode(status)


def wrapped(text):
    """A line as (colour, text) rows of at most COLUMNS; colour is that of the line's first sequence."""
    found = re.search(r"\x1b\[(\d+)m", text)
    colour = COLOURS.get(found.group(1), "#c9d1d9") if found else "#c9d1d9"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [(colour, plain[at : at + COLUMNS]) for at in range(0, max(len(plain), 1), COLUMNS)]


def draw(lines):
    """The SVG of lines with their times."""
    rows, now, last = [], 0.6, None
    for at, text in lines:
        now += STEP if last is None else max(STEP, min(at - last, PAUSE))
        last = at
        rows += [(now, colour, row) for colour, row in wrapped(text)]
    whole = now + END
    height, width = ROWS * LINE + 20, COLUMNS * CHARACTER + 24
    scrolls = [(at, max(0, n + 1 - ROWS)) for n, (at, _, _) in enumerate(rows)]
    # The last scroll position of each moment.
    steps = {0.0: 0} | dict(scrolls)
    key_times = ";".join(f"{at / whole:.5f}" for at in steps)
    values = ";".join(f"0 {-by * LINE}" for by in steps.values())
    texts = []
    for n, (at, colour, row) in enumerate(rows):
        shown = f'<animate attributeName="visibility" values="hidden;visible" keyTimes="0;{at / whole:.5f}" '
        shown += f'dur="{whole:.2f}s" calcMode="discrete" repeatCount="indefinite"/>'
        texts.append(f'<text x="12" y="{(n + 1) * LINE + 6}" fill="{colour}">{html.escape(row)}{shown}</text>')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">
<title>make demo, as it ran</title>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<svg x="0" y="4" width="100%" height="{ROWS * LINE + 10}">
<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="12" xml:space="preserve">
<animateTransform attributeName="transform" type="translate" dur="{whole:.2f}s" calcMode="discrete"
 repeatCount="indefinite" keyTimes="{key_times}" values="{values}"/>
{chr(10).join(texts)}
</g></svg></svg>
"""


def main():
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/demo.svg"
    lines, status = record(["scripts/demo.sh"])
    if status != 0:
        print(f"cast.py: the tour failed with {status}: no picture", file=sys.stderr)
        return status
    target.write_text(draw(lines), encoding="utf-8")
    print(f"{target}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
