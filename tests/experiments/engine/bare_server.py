"""The server of trainings without the kit: it starts at once, and its forks run the Python code that they are given."""

from fedgen.cli import fit_server

if __name__ == "__main__":
    fit_server.IDLE, fit_server.GRACE = 1.0, 0.5
    fit_server.main(lambda: None, "tests.experiments.engine.given_code")
