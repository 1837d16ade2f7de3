"""The columns of the matrix: how a program is started under each of Orbit's commands, what runs beside it, and what the
command itself must have said or done.

A condition has these moments: `before` (a host of services, an agent), `command` (the program's own, wrapped), `beside` and `after`
(what runs while it does), `trouble` (a false alarm, or a command that failed), `idle` (why the
cell proves nothing), `clear` (when every process has ended).
"""

import json
import os
import subprocess
import threading
import time

import processes


class Bare:
    """The program alone."""

    def __init__(self, orbit, logs, env, prefix):
        self.orbit, self.logs, self.env, self.prefix = orbit, logs, env, prefix

    def path(self, name):
        return os.path.join(self.logs, name)

    def before(self):
        pass

    def command(self, argv):
        return argv

    def whole(self, argv):
        """The command with what makes it another user's."""
        return [*self.prefix, *self.command(argv)]

    def beside(self, running):
        pass

    def after(self):
        pass

    def trouble(self):
        return None

    def idle(self):
        return None

    def clear(self):
        """After every process has ended."""

    @staticmethod
    def missing():
        """What the machine lacks for it."""
        return None

    def ask(self, *arguments, seconds=20):
        """Runs one of Orbit's commands; (status, output)."""
        done = subprocess.run(
            [*self.prefix, self.orbit, *arguments], env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=seconds, check=False,
        )
        return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def events_of(path):
    """The events of a file of JSON lines."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except FileNotFoundError:
        return []


class Watch(Bare):
    def command(self, argv):
        return [self.orbit, "watch", "--events", self.path("events"), "--", *argv]

    def trouble(self):
        events = events_of(self.path("events"))
        for event in events:
            # An event `trouble` says what cannot be seen, and accuses nobody.
            if event["event"] in ("hang", "action"):
                said = event.get("why") or event.get("did")
                return f"false alarm: {event['event']} ({event.get('sure', '')}): {said}"
        if not any(event["event"] == "joined" for event in events):
            return "the program was never joined"
        return None


class Why(Bare):
    """Samples the program, and what it started, once a second; the first time at once."""

    MOST = 4  # processes a round

    def beside(self, running):
        self.over, self.samples, self.failed = threading.Event(), 0, None
        self.thread = threading.Thread(target=self.sample, args=(running,))
        self.thread.start()

    def sample(self, running):
        while not self.over.is_set():
            began = time.monotonic()
            for pid in [running.pid, *sorted(processes.below(running.pid))][: self.MOST]:
                try:
                    status, output = self.ask("why", str(pid))
                except subprocess.TimeoutExpired:
                    self.failed = f"`orbit why {pid}` did not return in 20 s"
                    return
                if status == 0:
                    self.samples += 1
                elif os.path.exists(f"/proc/{pid}/exe") and not running.has_exited():
                    self.failed = f"`orbit why {pid}` ended with {status}: {output.strip().splitlines()[-1:]}"
            self.over.wait(max(0.0, 1 - (time.monotonic() - began)))

    def after(self):
        self.over.set()
        self.thread.join()

    def trouble(self):
        return self.failed

    def idle(self):
        return None if self.samples else "over before the first sample"


class Keep(Bare):
    """Ten checkpoints a second in place of one, so that a workload of a second meets some."""

    OPTIONS = ()
    HEALTHY = ("kept", "warning", "limit", "exited", "executes")

    def command(self, argv):
        return [self.orbit, "keep", "--every", "100ms", *self.OPTIONS, "--events", self.path("events"), "--", *argv]

    def trouble(self):
        for event in events_of(self.path("events")):
            if event["event"] not in self.HEALTHY:
                return f"{event['event']} in a healthy run: {json.dumps(event)[:200]}"
        return None

    def idle(self):
        ends = [event["figures"] for event in events_of(self.path("events")) if event["event"] == "exited"]
        if self.OPTIONS or any(figures["checkpoints"] for figures in ends):
            return None
        return "over before the first checkpoint"


class KeepLog(Keep):
    OPTIONS = ("--log",)


class Hijack(Bare):
    def command(self, argv):
        return [self.orbit, "hijack", "--", *argv]


class HijackTrace(Bare):
    def command(self, argv):
        return [self.orbit, "hijack", "--trace", "-o", self.path("trace"), "--", *argv]

    def trouble(self):
        size = os.path.getsize(self.path("trace")) if os.path.exists(self.path("trace")) else 0
        return None if size else "the trace is empty"


class ServiceExec(Bare):
    """The program is a member; a native service of another owner has an upcall in it a thousand times a second."""

    def before(self):
        # Upcalls run in the member that is current on the host's processor.
        self.cpu = min(os.sched_getaffinity(0))
        socket = self.path("host")
        self.host = processes.Running(
            [*self.prefix, self.orbit, "service", "run", "--socket", socket, "--tick", "1ms", "--cpu", str(self.cpu)], self.logs, self.env,
            self.path("host.out"), self.path("host.err"),
        )
        limit = time.monotonic() + 20
        while not os.path.exists(socket):
            if self.host.has_exited(0.02) or time.monotonic() > limit:
                raise RuntimeError(f"no host of services: {open(self.path('host.err'), encoding='utf-8').read()}")
        # As the program's user, since a service's owner must be the host's to act for.
        self.owner = processes.Running(
            [*self.prefix, "sleep", "1000000"], self.logs, self.env, self.path("owner.out"), self.path("owner.err")
        )
        self.service = os.path.join(os.path.dirname(self.orbit), "tick.so")
        status, output = self.ask(
            "service", "load", "--socket", socket, "--native", "--owner", str(self.owner.pid), "--on", "tick=1ms",
            "--budget", "300us/1ms", self.service,
        )
        if status != 0:
            raise RuntimeError(f"the service cannot be loaded: {output}")

    def command(self, argv):
        exec_ = [self.orbit, "service", "exec", "--socket", self.path("host"), "--", *argv]
        return ["taskset", "-c", str(self.cpu), *exec_]

    def after(self):
        status, output = self.ask("service", "ls", "--json", "--socket", self.path("host"))
        self.listed = (status, output)
        for running in (self.host, self.owner):
            running.signal(15)
        if not self.host.has_exited(10):
            self.failed = "the host of services does not exit"
        self.owner.has_exited(10)

    def trouble(self):
        if getattr(self, "failed", None):
            return self.failed
        status, output = self.listed
        if status != 0:
            return f"the host of services does not answer: {output.strip()[:200]}"
        return None

    def idle(self):
        return None if upcalls_of(self.listed[1]) else "no upcall ran in the program's first process"


def upcalls_of(listed):
    """The upcalls of all services that `orbit service ls --json` shows: runs inside a member."""
    return sum(service["upcalls"] for service in json.loads(listed)["list"]["services"])


class Agent(Bare):
    """The program is alone in a control group, and an agent has a policy that watches what is there."""

    POLICY = '[[policy]]\nname = "outside"\nmatch = {{ cgroup = "{group}" }}\nwatch = {{ limit = "5s" }}\n'

    @staticmethod
    def mount():
        """Where control groups of version 2 are, also beside those of version 1."""
        paths = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
        return next((path for path in paths if os.access(os.path.join(path, "cgroup.procs"), os.W_OK)), None)

    @staticmethod
    def missing():
        return None if Agent.mount() else "control groups of version 2 that may be written"

    def before(self):
        self.group = os.path.join(self.mount(), f"orbit-outside-{os.getpid()}")
        os.makedirs(self.group, exist_ok=True)
        with open(self.path("agent.toml"), "w", encoding="utf-8") as file:
            file.write(self.POLICY.format(group="/" + os.path.basename(self.group)))
        self.run, self.reports = self.path("agent"), self.path("reports")
        self.agent = processes.Running(
            [self.orbit, "agent", "--config", self.path("agent.toml"), "--run-dir", self.run, "--reports-dir", self.reports],
            self.logs, self.env, self.path("agent.out"), self.path("agent.err"),
        )
        limit = time.monotonic() + 20
        while not os.path.exists(os.path.join(self.run, "agent.sock")):
            if self.agent.has_exited(0.02) or time.monotonic() > limit:
                raise RuntimeError(f"no agent: {open(self.path('agent.err'), encoding='utf-8').read()}")

    def whole(self, argv):
        # The process is watched before it becomes the program: the agent looks for processes once a second.
        enter = 'echo $$ >"$0" && read -r _ <"$1" && shift && exec "$@"'
        os.mkfifo(self.path("go"))
        return ["/bin/sh", "-c", enter, os.path.join(self.group, "cgroup.procs"), self.path("go"), *super().whole(argv)]

    def beside(self, running):
        limit, watched = time.monotonic() + 20, 0
        while not watched:
            if time.monotonic() > limit:
                raise RuntimeError("the agent does not find the program")
            done = subprocess.run(
                [self.orbit, "agent", "status", "--json", "--socket", os.path.join(self.run, "agent.sock")],
                env=self.env, capture_output=True, timeout=20, check=False,
            )
            if done.returncode == 0:
                watched = sum(service["processes"] for service in json.loads(done.stdout)["services"])
            time.sleep(0.05)
        with open(self.path("go"), "w", encoding="utf-8") as file:
            file.write("go\n")

    def after(self):
        self.agent.signal(15)
        self.ended = self.agent.has_exited(10)

    def clear(self):
        if os.path.isdir(self.group):
            os.rmdir(self.group)

    def trouble(self):
        for name in sorted(os.listdir(self.reports)):
            with open(os.path.join(self.reports, name), encoding="utf-8") as file:
                return f"false alarm: {file.read()[:200]}"
        return None if self.ended else "the agent does not exit"


CONDITIONS = {
    "bare": Bare, "watch": Watch, "why": Why, "keep": Keep, "keep --log": KeepLog, "hijack": Hijack,
    "hijack --trace": HijackTrace, "service exec": ServiceExec,
    "agent": Agent,
}
