"""Runs one of CPython's test suites: NAME RESULTS [LEFT-OUT...]

Writes to RESULTS, as it goes, `running TEST` before each test and its outcome and name after it. A test that never ends
is the last one that runs. Tests that are left out do not run.
"""

import io
import sys
import unittest
import warnings

to = open(sys.argv[2], "w", buffering=1)


class Recorder(unittest.TextTestResult):
    outcomes = {}
    current = None

    def startTest(self, test):
        super().startTest(test)
        self.current = test.id()
        print("running", self.current, file=to)

    def stopTest(self, test):
        super().stopTest(test)
        print(self.outcomes.get(test.id(), "none"), test.id(), file=to)
        self.current = None

    def note(self, test, outcome):
        # A subtest's failure is its test's.
        name = getattr(test, "test_case", test).id()
        if self.outcomes.get(name) not in ("failed", "error"):
            self.outcomes[name] = outcome
        # What fails around tests is no test's.
        if self.current is None:
            print(outcome, name, file=to)

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

    def addExpectedFailure(self, test, why):
        super().addExpectedFailure(test, why)
        self.note(test, "expected")

    def addSubTest(self, test, subtest, why):
        super().addSubTest(test, subtest, why)
        if why is not None:
            self.note(test, "failed")


def remove(suite, names):
    """The suite without these tests; suites keep their order and what they set up."""
    kept = []
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            kept.append(remove(each, names))
        elif each.id() not in names:
            kept.append(each)
    return type(suite)(kept)


warnings.simplefilter("ignore")
suite = unittest.defaultTestLoader.loadTestsFromName("test." + sys.argv[1])
suite = remove(suite, set(sys.argv[3:]))
unittest.TextTestRunner(io.StringIO(), verbosity=0, resultclass=Recorder).run(suite)
print("done", sys.argv[1], file=to)
