"""Reads the catalogue: one TOML file a program, checked as it is read.

A file says how a program is installed, started, used, checked and stopped. It names what of its output differs from run
to run by rules of `normal.py`; it says nothing about what Orbit's commands do to it. In its texts @PORT@, @PORT2@, @OUTSIDE@
and @SCRATCH@ are replaced.
"""

import glob
import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass, field

import normal

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = (
    "bare", "watch", "why", "keep", "keep --log", "hijack", "hijack --trace", "service exec", "agent",
)


@dataclass
class Program:
    """A program of the catalogue. Without `ready` it is a batch job, which is over when its command is."""

    name: str
    kind: str  # as it is listed: database, web server, compiler
    packages: list  # package=proof, as in scripts/packages.sh
    command: list
    files: dict = field(default_factory=dict)  # name below the scratch directory -> text
    prepare: str = ""  # shell, without any of Orbit's commands
    input: str = ""  # a file that is its stdin
    keys: list = field(default_factory=list)  # it has a terminal, where these are typed: see terminal.py
    ready: str = ""  # unix:NAME, port, or said:TEXT (in its output)
    workload: str = ""  # shell: uses the server, checks the answers, prints what it got
    stop: str = "TERM"  # a signal, or a shell command
    data: str = ""  # shell: what is at rest afterwards, checked and printed
    volatile: dict = field(default_factory=dict)  # stdout, stderr, answers, data -> names of rules
    not_applicable: dict = field(default_factory=dict)  # column -> why
    limit: int = 60  # seconds for each of start, workload and stop
    ordinary: bool = False  # runs as an ordinary user, since it does not as root
    short: bool = False  # in the short form as well
    faults: dict = field(default_factory=dict)  # prepare, keep, client, poison, kinds, data: see faults.py

    def is_server(self):
        return bool(self.ready)

    def missing(self):
        """The packages whose proof is not there."""
        return [entry.partition("=")[0] for entry in self.packages if not is_there(entry.partition("=")[2])]


def is_there(proof):
    """Whether one of the proofs, separated by |, is there: a command, or a path with wildcards."""
    return any(
        glob.glob(one) if one.startswith("/") else shutil.which(one, path=PATH) for one in proof.split("|")
    )


def rust():
    """The folder of the Rust compiler's own programs: those of rustup need its settings, which a scratch directory lacks."""
    if not shutil.which("rustc"):
        return ""
    done = subprocess.run(["rustc", "--print", "sysroot"], stdout=subprocess.PIPE, text=True, check=False)
    return os.path.join(done.stdout.strip(), "bin")


PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin:{rust()}"


def parse(name, text):
    """A program from its file's text; ValueError says what is wrong with it."""
    table = tomllib.loads(text)
    known = Program.__dataclass_fields__
    for key, value in table.items():
        if key not in known or key == "name":
            raise ValueError(f"{name}: unknown key {key!r}; known: {', '.join(sorted(set(known) - {'name'}))}")
        wanted = known[key].type
        if not isinstance(value, wanted):
            raise ValueError(f"{name}: {key} is {type(value).__name__}, must be {wanted.__name__}")
    for key in ("kind", "packages", "command"):
        if not table.get(key):
            raise ValueError(f"{name}: {key} is missing")
    program = Program(name=name, **table)
    for entry in program.packages:
        if not all(entry.partition("=")):
            raise ValueError(f"{name}: {entry!r} is not package=proof")
    for part, rules in program.volatile.items():
        if part not in ("stdout", "stderr", "answers", "data"):
            raise ValueError(f"{name}: volatile.{part}: not a part of an outcome")
        for rule in rules:
            normal.check(f"{name}: volatile.{part}", rule)
    for column in program.not_applicable:
        if column not in COLUMNS[1:]:
            raise ValueError(f"{name}: not_applicable: no column {column!r}")
    if program.keys and (program.is_server() or program.input or not program.data):
        raise ValueError(f"{name}: a program with a terminal is no server, has no input, and needs a check of data")
    if program.is_server() and not program.workload:
        raise ValueError(f"{name}: a server needs a workload")
    if not (program.is_server() or program.data) and "stdout" in program.volatile:
        if "ignored" in program.volatile["stdout"]:
            raise ValueError(f"{name}: nothing of it is checked")
    return program


def load(folder=os.path.join(HERE, "programs")):
    """All programs, by name."""
    programs = []
    for path in sorted(glob.glob(os.path.join(folder, "*.toml"))):
        with open(path, encoding="utf-8") as file:
            programs.append(parse(os.path.basename(path)[: -len(".toml")], file.read()))
    return programs
