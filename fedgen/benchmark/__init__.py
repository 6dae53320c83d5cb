"""The benchmark: suites of cells, each data x partition x generator x algorithm, their entries and the leaderboard."""
