#!/usr/bin/python3
"""Runs rdma-core's tests and prints a line for each: its name, result and reason.

    report.py TESTS DEVICE GID MODULE...

TESTS is the directory of the package "tests" (a copy of Debian's /usr/share/doc/rdma-core/tests
with the files uncompressed). Each MODULE is a file in it, without the prefix "test_" and the
suffix. A line has the name, a tab, "ok", "skip", "FAIL" or "ERROR", a tab, and the last line of the
reason. If METRICS in the environment is the address of the daemon's metrics, the regions have pages
of their own, and the last line is "# mapped N of M regions".
"""
import importlib
import os
import sys
import unittest

import gpu
import pages


def last_line(text):
    lines = [l.strip() for l in text.strip().splitlines() if l.strip()]
    return lines[-1] if lines else ""


class Lines(unittest.TestResult):
    """Prints each result at once, so that the output shows which test hangs or crashes."""

    def line(self, test, outcome, reason=""):
        print(test.id(), outcome, reason, sep="\t", flush=True)

    def startTest(self, test):
        super().startTest(test)
        print("#", test.id(), flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.line(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(test, "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.report(test, "FAIL", self.failures)

    def addError(self, test, err):
        super().addError(test, err)
        self.report(test, "ERROR", self.errors)

    def report(self, test, outcome, collected):
        print(collected[-1][1], file=sys.stderr, flush=True)
        self.line(test, outcome, last_line(collected[-1][1]))


def main():
    directory, device, gid = sys.argv[1:4]
    modules = sys.argv[4:]
    sys.path[:0] = [os.path.dirname(directory), directory]
    # The tests read these options from the command line.
    sys.argv = ["run_tests.py", "--dev", device, "--gid", gid]
    importlib.import_module("args_parser").parser.parse_args()
    gpu.install(importlib.import_module("tests.test_mr"))
    suite = unittest.TestSuite()
    for m in modules:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromName("tests.test_" + m))
    metrics = os.environ.get("METRICS")
    if metrics:
        modules = [m for name, m in sys.modules.items() if name.startswith("tests.")]
        count = pages.install(modules, metrics)
    suite.run(Lines())
    if metrics:
        print("# mapped %d of %d regions" % count())


main()
