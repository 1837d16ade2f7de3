"""Starts processes, waits for them with a limit, and leaves none.

The runner becomes the parent of everything that a program leaves behind (PR_SET_CHILD_SUBREAPER), so that whatever was
started is found below it and ended by its number. Exits are awaited on a pidfd.
"""

import ctypes
import fcntl
import os
import select
import signal
import subprocess
import termios
import time

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Makes this process the parent of processes whose own parent has exited."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def table():
    """All processes: pid -> (parent, name, state)."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        found[int(entry)] = (int(rest[1]), name, rest[0])
    return found


def below(root):
    """The living descendants of a process: pid -> name."""
    processes, inside = table(), {root}
    grew = True
    while grew:
        added = {pid for pid, (parent, _, _) in processes.items() if parent in inside} - inside
        inside |= added
        grew = bool(added)
    return {pid: processes[pid][1] for pid in inside - {root} if processes[pid][2] != "Z"}


class Running:
    """A process in a session of its own, with its output in two files; or with a terminal, which is the session's."""

    def __init__(self, argv, cwd, env, out, err, stdin=None, terminal=None):
        self.began = time.monotonic()
        with open(out, "wb") as stdout, open(err, "wb") as stderr, open(stdin or os.devnull, "rb") as source:
            files = {"stdin": source, "stdout": stdout}
            if terminal is not None:
                files = {"stdin": terminal, "stdout": terminal, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
            self.process = subprocess.Popen(argv, cwd=cwd, env=env, stderr=stderr, start_new_session=True, **files)
        self.pid = self.process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def has_exited(self, seconds=0.0):
        """Whether it exits within so many seconds."""
        return bool(select.select([self.pidfd], [], [], max(0.0, seconds))[0])

    def status(self):
        """Its exit status as a shell has it: 128 more than the signal that killed it. Waits without limit."""
        code = self.process.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return 128 - code if code < 0 else code

    def signal(self, number):
        """Sends it a signal, unless it has exited."""
        if not self.has_exited():
            os.kill(self.pid, number)


def names_left(grace):
    """Names of the descendants that are still there after so many seconds, sorted; at once if there are none."""
    limit = time.monotonic() + grace
    while left := below(os.getpid()):
        if time.monotonic() > limit:
            return sorted(left.values())
        time.sleep(0.02)
    return []


def end_all():
    """Kills every descendant, until there are none, and reaps what was adopted."""
    for _ in range(500):
        left = below(os.getpid())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if not left:
            return
        time.sleep(0.02)
    raise RuntimeError(f"processes that cannot be killed: {below(os.getpid())}")


def run_shell(command, cwd, env, seconds, before=()):
    """Runs a shell command: (status or None after the limit, stdout and stderr as text)."""
    process = subprocess.Popen(
        [*before, "/bin/sh", "-c", command], cwd=cwd, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output.decode("utf-8", "replace")
