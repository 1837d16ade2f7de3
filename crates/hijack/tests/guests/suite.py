"""Runs one of CPython's test suites; prints a line for each test: its outcome and its name, sorted by name."""

import io
import sys
import unittest
import warnings


class Recorder(unittest.TextTestResult):
    outcomes = {}

    def note(self, test, outcome):
        # A subtest's failure is its test's.
        name = getattr(test, "test_case", test).id()
        if self.outcomes.get(name) not in ("failed", "error"):
            self.outcomes[name] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addFailure(self, test, why):
        super().addFailure(test, why)
        self.note(test, "failed")

    def addError(self, test, why):
        super().addError(test, why)
        self.note(test, "error")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addSubTest(self, test, subtest, why):
        super().addSubTest(test, subtest, why)
        if why is not None:
            self.note(test, "failed")


warnings.simplefilter("ignore")
suite = unittest.defaultTestLoader.loadTestsFromName("test." + sys.argv[1])
unittest.TextTestRunner(io.StringIO(), verbosity=0, resultclass=Recorder).run(suite)
with open(sys.argv[2], "w") as to:
    for name, outcome in sorted(Recorder.outcomes.items()):
        print(outcome, name, file=to)
