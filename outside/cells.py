"""Runs one program under one condition, in a scratch directory that is made anew each time, and ends all that it started."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import time

import catalogue
import compare
import conditions
import processes
import terminal

# What remains of a program after its exit gets so long to exit as well.
GRACE_SECONDS = 3.0
STOP_SECONDS = 20


def free_ports(count):
    """Ports on loopback that nothing listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Place:
    """Where a program runs: the same directory and ports in each column, so that its output may name them."""

    def __init__(self, root, program, orbit):
        self.program, self.orbit = program, orbit
        self.base = os.path.join(root, program.name)
        self.scratch, self.logs = os.path.join(self.base, "scratch"), os.path.join(self.base, "logs")
        self.ports = free_ports(2)
        # A tool that only an ordinary user runs: the whole cell is that user's, Orbit's command too.
        ordinary = program.ordinary and os.getuid() == 0
        self.prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if ordinary else []
        self.env = {
            "PATH": catalogue.PATH, "HOME": self.scratch, "TMPDIR": self.scratch, "XDG_RUNTIME_DIR": self.logs,
            "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "xterm", "SOURCE_DATE_EPOCH": "1700000000", "USER": "nobody",
            "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.path.join(catalogue.HERE, "clients"),
        }

    def filled(self, text):
        """A text of the catalogue with its places and ports."""
        for name, value in (
            ("@PORT@", str(self.ports[0])), ("@PORT2@", str(self.ports[1])), ("@OUTSIDE@", catalogue.HERE),
            ("@SCRATCH@", self.scratch),
        ):
            text = text.replace(name, value)
        return text

    def make(self):
        """The directories, empty, with the program's files."""
        shutil.rmtree(self.base, ignore_errors=True)
        for path in (self.scratch, self.logs):
            os.makedirs(path)
        for name, text in self.program.files.items():
            path = os.path.join(self.scratch, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.filled(text))
            os.chmod(path, 0o755 if text.startswith("#!") else 0o644)
        if self.prefix:
            for folder, folders, files in os.walk(self.base):
                for name in (folder, *(os.path.join(folder, each) for each in (*folders, *files))):
                    os.chown(name, 65534, 65534)
        if self.program.prepare:
            status, output = processes.run_shell(
                self.filled(self.program.prepare), self.scratch, self.env, 120, self.prefix
            )
            if status != 0:
                raise RuntimeError(f"{self.program.name}: prepare ended with {status}: {output[-500:]}")

    def listing(self):
        """Files of the scratch directory with their sizes and times: whether anything was done there."""
        found = {}
        for folder, _, files in os.walk(self.scratch):
            for name in files:
                path = os.path.join(folder, name)
                try:
                    about = os.lstat(path)
                except FileNotFoundError:
                    continue
                found[path] = (about.st_size, about.st_mtime_ns)
        return found

    def is_ready(self):
        """Whether the server can be reached."""
        kind, _, name = self.program.ready.partition(":")
        path = os.path.join(self.scratch, name)
        if kind == "said":
            return any(name.encode() in read(os.path.join(self.logs, each)) for each in ("stdout", "stderr"))
        if kind == "unix":
            if not (os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode)):
                return False
            family, address = socket.AF_UNIX, path
        else:
            family, address = socket.AF_INET, ("127.0.0.1", self.ports[0])
        with socket.socket(family) as client:
            client.settimeout(5)
            try:
                client.connect(address)
                return True
            except OSError:
                return False


def read(path):
    with open(path, "rb") as file:
        return file.read()


def await_ready(place, running, limit):
    """'' if the server became reachable, else where it stopped."""
    end = time.monotonic() + limit
    while not place.is_ready():
        if running.has_exited(0.02):
            return ""
        if time.monotonic() > end:
            return "start"
    return ""


def ask_to_stop(place, running, limit):
    """Stops a server as the catalogue says; '' if it exited."""
    how = place.program.stop
    if hasattr(signal, f"SIG{how}"):
        running.signal(getattr(signal, f"SIG{how}"))
    else:
        processes.run_shell(place.filled(how), place.scratch, place.env, limit, place.prefix)
    return "" if running.has_exited(limit) else f"stop ({how})"


def serve(place, running, outcome):
    """A server's run: ready, workload, stop."""
    limit = place.program.limit
    outcome.hung = await_ready(place, running, limit)
    if outcome.hung or running.has_exited():
        return
    outcome.was_ready = True
    status, answers = processes.run_shell(
        place.filled(place.program.workload), place.scratch, place.env, limit, place.prefix
    )
    outcome.answers_status, outcome.answers = status, answers.encode()
    if status is None:
        outcome.hung = "workload"
        return
    outcome.hung = ask_to_stop(place, running, STOP_SECONDS)


def run(place, column):
    """Runs the program once under a condition: (outcome, the condition)."""
    program = place.program
    place.make()
    condition = conditions.CONDITIONS[column](place.orbit, place.logs, place.env, place.prefix)
    before = place.listing()
    outcome = compare.Outcome()
    out, err = os.path.join(place.logs, "stdout"), os.path.join(place.logs, "stderr")
    began = time.monotonic()
    try:
        condition.before()
        argv = [place.filled(part) for part in program.command]
        stdin = os.path.join(place.scratch, program.input) if program.input else None
        screen = terminal.Terminal(program.keys, out) if program.keys else None
        running = processes.Running(
            condition.whole(argv), place.scratch, place.env, out, err, stdin,
            screen and screen.programs,
        )
        if screen:
            screen.start()
        condition.beside(running)
        try:
            if program.is_server():
                serve(place, running, outcome)
            elif not running.has_exited(program.limit):
                outcome.hung = (screen and screen.awaited()) or "run"
            if running.has_exited():
                outcome.status = running.status()
        finally:
            if screen:
                screen.close()
            condition.after()
        outcome.seconds = time.monotonic() - began
        outcome.left = processes.names_left(GRACE_SECONDS)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        outcome.hung = outcome.hung or f"the condition: {error}"
    finally:
        processes.end_all()
        condition.clear()
    if os.path.exists(err):
        outcome.stdout = read(out)
        outcome.stderr, outcome.said = compare.split_own(read(err))
    outcome.touched = bool(outcome.stdout) or place.listing() != before
    if program.data and not outcome.hung:
        outcome.data_status, data = processes.run_shell(
            place.filled(program.data), place.scratch, place.env, program.limit, place.prefix
        )
        outcome.data = data.encode()
        processes.end_all()
    return outcome, condition


def row(place, columns):
    """Yields (column, state, how, seconds, what Orbit said) of each column; the first is the bare run against another one."""
    program = place.program
    bare, _ = run(place, "bare")
    wrong = bare_trouble(program, bare)
    if wrong:
        yield "bare", compare.DIFFERS, wrong, bare.seconds, []
        return
    for column in columns:
        if column in program.not_applicable:
            yield column, compare.NOT_APPLICABLE, program.not_applicable[column], 0.0, []
            continue
        now, condition = run(place, column)
        state, how = compare.judge(bare, now, program.volatile)
        if state == compare.EQUAL and (trouble := condition.trouble()):
            state, how = compare.DIFFERS, trouble
        if state == compare.EQUAL and (idle := condition.idle()):
            state, how = compare.NOT_APPLICABLE, idle
        yield column, state, how, now.seconds, now.said
        if column == "bare" and state != compare.EQUAL:
            return


def bare_trouble(program, bare):
    """What is wrong with the run without Orbit: then there is nothing to compare with."""
    if bare.hung:
        return f"hangs at {bare.hung}"
    if program.is_server() and not bare.was_ready:
        return f"exits before it is ready: {compare.because(bare)}"
    if program.is_server() and bare.answers_status != 0:
        return f"the workload ends with {bare.answers_status}: {bare.answers[-600:].decode('utf-8', 'replace')}" + (
            f" (stderr: {bare.stderr[-300:].decode('utf-8', 'replace')})")
    if bare.data_status != 0:
        return f"the check of data ends with {bare.data_status}: {bare.data[-300:].decode('utf-8', 'replace')}"
    if not (bare.stdout or bare.answers or bare.data):
        return "nothing of it can be compared"
    return ""
