"""The suite `tiny` with a ninth of its images, scored in its small embeddings: scoring is most of what it takes.

`python -m` this for `fedgen`.
"""

import sys
from dataclasses import replace

from fedgen.__main__ import main
from fedgen.benchmark.suite import DATA, DIGITS_NETWORK

FEW = replace(DATA["digits"], num_images=100, embeddings=(DIGITS_NETWORK, "pixels"))

if __name__ == "__main__":
    DATA["digits"] = FEW
    sys.exit(main(sys.argv[1:]))
