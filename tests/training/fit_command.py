"""`fedgen` for tests.launched.Imported, with all that its training imports."""

import signal
import sys

from fedgen.__main__ import main
from fedgen.cli.fit_server import import_kit

import_kit()


def run(arguments):
    """The command with its arguments; ends as it does."""
    # a shell's background jobs, tests among them, ignore Ctrl-C, and so would the run
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["fedgen", *arguments]
    sys.exit(main())
