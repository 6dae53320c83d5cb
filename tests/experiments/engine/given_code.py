"""A program that runs the Python code of its second argument."""

import sys

if __name__ == "__main__":
    exec(sys.argv[2])
