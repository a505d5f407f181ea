"""Runs the unittest cases of a program and says of each how it ended, as tests/support/main.cpp does of GoogleTest's.

TRIREME_TEST_RESULTS: a file that gets one line for each test. Exit status 77: all were skipped."""
import os
import sys
import time
import unittest


class _Results(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def note(self, state, test, reason=""):
        case = isinstance(test, unittest.TestCase)  # or a class, of which setUpClass() skips all
        name = f"{type(test).__name__}.{test._testMethodName}" if case else test.id()
        seconds = time.monotonic() - self.began if case else 0
        line = f"{state} {os.path.basename(sys.argv[0])}/{name} {seconds:.3f} {reason}\n"
        if os.environ.get("TRIREME_TEST_RESULTS"):
            with open(os.environ["TRIREME_TEST_RESULTS"], "a") as file:
                file.write(line)
        print(line, end="", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note("passed", test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note("failed", test)

    def addError(self, test, error):
        super().addError(test, error)
        if isinstance(test, unittest.TestCase):
            self.note("failed", test)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note("failed", test, subtest._subDescription())

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note("skipped", test, reason)


def main():
    """Arguments are names of tests, SUITE.TEST or SUITE; none: all."""
    loader = unittest.defaultTestLoader
    module = sys.modules["__main__"]
    suite = loader.loadTestsFromNames(sys.argv[1:], module) if sys.argv[1:] else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(stream=sys.stdout, resultclass=_Results).run(suite)
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped and len(result.skipped) >= result.testsRun else 0)
