"""Compares what a run gave with what the run without Orbit gave, and says in one sentence how they differ."""

import re
from dataclasses import dataclass, field

from normal import normal

EQUAL, DIFFERS, REFUSED, NOT_APPLICABLE = "equal", "differs", "refused", "n/a"

# What Orbit's commands say on the program's stderr begins like this, and is no output of the program's.
OWN_LINE = re.compile(rb"^(orbit (?:watch|keep|hijack|why|service(?: exec)?)|orbit)(?::| ).*\n?", re.MULTILINE)


@dataclass
class Outcome:
    """What one run of a program gave."""

    status: int | None = None  # as a shell has it; None: it did not exit
    was_ready: bool = False  # of a server
    hung: str = ""  # where it did not get further: start, workload, stop
    stdout: bytes = b""
    stderr: bytes = b""
    answers: bytes = b""  # what the workload printed
    answers_status: int | None = 0
    data: bytes = b""
    data_status: int | None = 0
    left: list = field(default_factory=list)  # names of processes that were still there
    touched: bool = False  # whether it made or changed a file, or had any output
    said: list = field(default_factory=list)  # lines of Orbit's own
    seconds: float = 0.0


def split_own(stderr):
    """(the program's own lines, those of Orbit's commands)."""
    said = [found.group(0).decode("utf-8", "replace").rstrip("\n") for found in OWN_LINE.finditer(stderr)]
    return OWN_LINE.sub(b"", stderr), said


def first_difference(name, bare, now):
    """A sentence about the first line that is not the same."""
    old, new = bare.splitlines(), now.splitlines()
    for number in range(max(len(old), len(new))):
        was = old[number] if number < len(old) else None
        got = new[number] if number < len(new) else None
        if was != got:
            return f"{name}, line {number + 1}: {shown(got)} in place of {shown(was)}"
    return f"{name} differs in its line ends"


def shown(line):
    if line is None:
        return "no line"
    text = line.decode("utf-8", "replace")
    return f"\u201c{text[:120]}{'…' if len(text) > 120 else ''}\u201d"


def is_refusal(now):
    """Whether the program was refused with a sentence, before it started: nothing of it is to be seen."""
    return now.status in (1, 2, 125) and bool(now.said) and not now.stdout and not now.stderr and not now.touched


def judge(bare, now, volatile, trouble=None):
    """(state of the cell, how). `trouble`: what the condition itself found wrong, a false alarm for instance."""
    if is_refusal(now):
        return REFUSED, now.said[-1]
    if now.hung:
        return DIFFERS, f"hangs at {now.hung}"
    for part in ("answers", "data"):
        status = getattr(now, f"{part}_status")
        if status != getattr(bare, f"{part}_status"):
            last = (getattr(now, part).splitlines() or [b""])[-1]
            return DIFFERS, f"the check of {part} ends with {status}: {shown(last)}"
    if now.status != bare.status:
        return DIFFERS, f"exit status {now.status} in place of {bare.status}{because(now)}"
    for part in ("answers", "data", "stdout", "stderr"):
        rules = volatile.get(part, [])
        was, got = normal(getattr(bare, part), rules), normal(getattr(now, part), rules)
        if was != got:
            return DIFFERS, first_difference(part, was, got)
    if now.left != bare.left:
        return DIFFERS, f"processes left: {', '.join(now.left) or 'none'} in place of {', '.join(bare.left) or 'none'}"
    if trouble:
        return DIFFERS, trouble
    return EQUAL, ""


def because(now):
    lines = now.said or [line.decode("utf-8", "replace") for line in now.stderr.splitlines() if line.strip()]
    return f" ({lines[-1][:160]})" if lines else ""
