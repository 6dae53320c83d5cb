"""`fedgen fit` for tests.launched.Imported, with all that it imports."""

import signal
import sys

from fedgen.__main__ import main
from fedgen.cli.fit_server import import_kit

import_kit()


def run(arguments):
    """A recipe's training in a folder, of so many rounds; ends as the command does."""
    recipe, folder, rounds = arguments
    # a shell's background jobs, tests among them, ignore Ctrl-C, and so would the run
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["fedgen", "fit", "--config", recipe]
    sys.argv += ["--trainer.default_root_dir", folder, "--trainer.max_epochs", rounds]
    sys.exit(main())
