"""A client on its own machine: its data, turns, answers and policy."""

WORKER = "FEDGEN_WORKER"  # set in the environment of a worker, a process of a SuperNode
