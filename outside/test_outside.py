#!/usr/bin/env python3
"""Tests of the matrix itself: what it must call equal, and above all what it must not.

    outside/test_outside.py
"""

import contextlib
import io
import os
import shutil
import tempfile
import unittest

import catalogue
import cells
import compare
import conditions
import faults
import normal
import processes
import run
from catalogue import Program
from compare import Outcome, judge

# In place of Orbit's command: starts the program after some harm. Named by the test.
HARMFUL = r"""#!/bin/sh
while [ "$1" != -- ]; do shift; done; shift
case $HARM in
none) exec "$@" ;;
output) "$@" | sed s/2/3/; exit 0 ;;
status) "$@"; exit 4 ;;
stderr) echo noise >&2; exec "$@" ;;
data) "$@"; echo more >>result ;;
hang) sleep 1000 ;;
left) sleep 1000 >/dev/null 2>&1 & exec "$@" ;;
refuses) echo "orbit hijack: cannot run this" >&2; exit 1 ;;
late) "$@"; echo "orbit hijack: cannot run this" >&2; exit 1 ;;
foreign) exec python3 -m http.server "$PORT" --bind 127.0.0.1 --directory foreign ;;
deaf) trap "" TERM; "$@" & wait; sleep 1000 ;;
esac
"""

BATCH = """
kind = "test"
packages = ["dash=/bin/sh"]
command = ["/bin/sh", "-c", "echo 1 2; echo 5 >result"]
data = "cat result"
limit = 2
"""

SERVER = """
kind = "test"
packages = ["python3=python3"]
command = ["python3", "-m", "http.server", "@PORT@", "--bind", "127.0.0.1", "--directory", "files"]
prepare = "python3 -m http_check make files; mkdir foreign; cd files; for f in *; do cp file7.txt ../foreign/$f; done"
ready = "port"
workload = "python3 -m http_check get files @PORT@ --rounds 1"
volatile = { stderr = ["ignored"] }
"""


TERMINAL = """
kind = "test"
packages = ["dash=/bin/sh"]
command = ["/bin/sh", "-c", "echo 'name?'; read -r name; echo \\"$name $(stty size)\\" >result"]
keys = ["wait:name?", "pause", "somebody\\r"]
data = "cat result"
volatile = { stdout = ["ignored"] }
limit = 2
"""


class Cells(unittest.TestCase):
    """Whole cells, under a command that does harm."""

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="orbit-outside-test.")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.orbit = os.path.join(self.root, "orbit")
        with open(self.orbit, "w", encoding="utf-8") as file:
            file.write(HARMFUL)
        os.chmod(self.orbit, 0o755)
        processes.adopt_orphans()

    def cell(self, harm, text=BATCH):
        place = cells.Place(self.root, catalogue.parse("test", text), self.orbit)
        place.env |= {"HARM": harm, "PORT": str(place.ports[0])}
        found = {column: (state, how) for column, state, how, _, _ in cells.row(place, ["bare", "hijack"])}
        self.assertEqual(found["bare"], (compare.EQUAL, ""))
        self.assertEqual(processes.below(os.getpid()), {}, "a process was left")
        return found["hijack"]

    def differs(self, harm, word, text=BATCH):
        state, how = self.cell(harm, text)
        self.assertEqual(state, compare.DIFFERS, how)
        self.assertIn(word, how)

    def test_no_harm_is_equal(self):
        self.assertEqual(self.cell("none"), (compare.EQUAL, ""))
        self.assertEqual(self.cell("none", SERVER), (compare.EQUAL, ""))

    def test_altered_output_differs(self):
        self.differs("output", "stdout, line 1: “1 3” in place of “1 2”")

    def test_another_status_differs(self):
        self.differs("status", "exit status 4 in place of 0")

    def test_a_line_on_stderr_differs(self):
        self.differs("stderr", "noise")

    def test_altered_data_differs(self):
        self.differs("data", "data, line 2: “more”")

    def test_a_hang_differs(self):
        self.differs("hang", "hangs at run")

    def test_keys_are_typed_at_a_terminal(self):
        self.assertEqual(self.cell("none", TERMINAL), (compare.EQUAL, ""))
        self.differs("data", "data, line 2: “more”", TERMINAL)
        self.differs("hang", "hangs at the screen, which never showed 'name?'", TERMINAL)

    def test_a_process_left_differs(self):
        cells.GRACE_SECONDS, kept = 0.2, cells.GRACE_SECONDS
        self.addCleanup(setattr, cells, "GRACE_SECONDS", kept)
        self.differs("left", "processes left: sleep")

    def test_a_refusal_before_the_start(self):
        self.assertEqual(self.cell("refuses"), (compare.REFUSED, "orbit hijack: cannot run this"))

    def test_a_refusal_after_the_start_differs(self):
        self.differs("late", "exit status 1 in place of 0")

    def test_foreign_answers_differ(self):
        self.differs("foreign", "the check of answers", SERVER)

    def test_a_server_that_does_not_stop_differs(self):
        cells.STOP_SECONDS, kept = 1, cells.STOP_SECONDS
        self.addCleanup(setattr, cells, "STOP_SECONDS", kept)
        self.differs("deaf", "hangs at stop", SERVER)


class Judging(unittest.TestCase):
    def test_trouble_of_the_command_differs(self):
        with tempfile.TemporaryDirectory() as logs:
            watch = conditions.Watch("orbit", logs, {}, [])
            with open(os.path.join(logs, "events"), "w", encoding="utf-8") as file:
                file.write('{"event": "joined", "pid": 1}\n')
            self.assertIsNone(watch.trouble())
            with open(os.path.join(logs, "events"), "a", encoding="utf-8") as file:
                file.write('{"event": "hang", "sure": "guess", "why": "x"}\n')
            self.assertIn("false alarm", watch.trouble())

    def test_a_report_of_the_agent_differs(self):
        with tempfile.TemporaryDirectory() as logs:
            agent = conditions.Agent("orbit", logs, {}, [])
            agent.reports, agent.ended = logs, True
            self.assertIsNone(agent.trouble())
            with open(os.path.join(logs, "hang-1.json"), "w", encoding="utf-8") as file:
                file.write('{"policy": "outside"}')
            self.assertIn("false alarm", agent.trouble())

    def test_own_lines_are_no_output(self):
        own, said = compare.split_own(b"a\norbit keep: sh: a sentence\nb\n")
        self.assertEqual((own, said), (b"a\nb\n", ["orbit keep: sh: a sentence"]))

    def test_a_refusal_needs_a_sentence(self):
        state, _ = judge(Outcome(status=0), Outcome(status=125), {})
        self.assertEqual(state, compare.DIFFERS)

    def test_a_missing_line_is_shown(self):
        state, how = judge(Outcome(status=0, stdout=b"a\nb\n"), Outcome(status=0, stdout=b"a\n"), {})
        self.assertEqual((state, how), (compare.DIFFERS, "stdout, line 2: no line in place of “b”"))

    def test_a_check_that_fails_differs_though_its_output_is_volatile(self):
        state, _ = judge(Outcome(status=0), Outcome(status=0, data_status=1), {"data": ["ignored"]})
        self.assertEqual(state, compare.DIFFERS)


class Rules(unittest.TestCase):
    def test_times_pids_and_durations(self):
        for rule, text in (
            ("times", b"[2026-11-28 19:12:01.123 UTC] x"), ("times", b"12:30:59 x"), ("times", b"28 Nov 2026 19:12:01.5 x"),
            ("pids", b"process 4711 x"), ("pids", b"4711:M x"), ("durations", b"done in 0.3 s"),
        ):
            later = text.replace(b"1", b"2").replace(b"3", b"4")
            self.assertNotEqual(text, later)
            self.assertEqual(normal.normal(text, [rule]), normal.normal(later, [rule]), rule)

    def test_they_leave_numbers_that_are_answers(self):
        for rule in ("times", "pids", "durations", "addresses", "client-ports"):
            self.assertNotEqual(normal.normal(b"count 17", [rule]), normal.normal(b"count 18", [rule]), rule)


class Catalogue(unittest.TestCase):
    def test_mistakes_are_named(self):
        for text, word in (
            ("kind = 1", "must be str"), (BATCH + "colour = 1", "unknown key"),
            (SERVER + "keys = ['x']", "is no server"), ("kind = 'x'", "packages is missing"),
            (BATCH + "volatile = { stdout = ['moon'] }", "no rule"), (BATCH + "ready = 'port'", "needs a workload"),
            (BATCH + "not_applicable = { sleep = 'x' }", "no column"),
        ):
            with self.assertRaisesRegex(ValueError, word):
                catalogue.parse("test", text)

    def test_every_file_can_be_read(self):
        self.assertGreaterEqual(len(catalogue.load()), 10)

    def test_the_short_form_is_a_dozen(self):
        self.assertEqual(len([program for program in catalogue.load() if program.short]), 12)


class Faults(unittest.TestCase):
    ROW = dict.fromkeys(faults.HARM, 0) | {
        "own_ends": [], "in_memory": False, "state": "exact", "kind": "signal", "crashes": 5, "restarts": 0, "ends": [], "gone": False, "data": "right",
    }

    def test_what_fails(self):
        for change in (
            {"wrong": 1}, {"lost": 1}, {"doubled": 1}, {"foreign": 1}, {"hung": 1}, {"crashes": 0}, {"gone": True},
            {"data": "wrong"}, {"restarts": 1, "ends": [0]}, {"restarts": 1, "ends": [139], "lost": 1}, {"restarts": 1, "ends": [139], "foreign": 1},
        ):
            self.assertTrue(faults.has_failed(self.ROW | change), change)

    def test_what_passes(self):
        for change in (
            {}, {"restarts": 1, "ends": [139]}, {"restarts": 1, "ends": [139], "in_memory": True, "lost": 2}, {"kind": "pointer", "wrong": 9},
            {"crashes": 0, "restarts": 5, "ends": [2], "own_ends": [2]},
        ):
            self.assertFalse(faults.has_failed(self.ROW | change), change)

    def test_kinds_that_a_client_cannot_do_are_left_out(self):
        program = Program(name="x", kind="x", packages=[], command=["x"], faults={"client": "x", "poison": "x"})
        kinds = faults.kinds_of(program)
        self.assertTrue("poison" in kinds and "half" not in kinds and "calm" not in kinds, kinds)


class Counting(unittest.TestCase):
    def test_a_column_may_refuse_one_in_twelve(self):
        def column(refused, equal):
            states = [compare.REFUSED] * refused + [compare.EQUAL] * equal
            return list(run.poor_columns([{"column": "keep", "state": state} for state in states]))

        self.assertEqual(column(1, 3), [])
        self.assertEqual(column(2, 22), [])
        self.assertEqual(len(column(2, 20)), 1)


if __name__ == "__main__":
    with contextlib.redirect_stderr(io.StringIO()) as said:
        result = unittest.main(exit=False, verbosity=2).result
    print(said.getvalue())
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed, {len(result.skipped)} skipped")
    raise SystemExit(bad > 0)
