"""What the package may grow to at most: `make check` fails beyond one of these.

They are lowered with every change that stays below them, and raised only where a plan names the number. The measures
are defined in `benchmarks.house.measures`.
"""

ROOMS = {  # folders directly under fedgen/; "" are the package's own files
    "federated, clients": ("federated", "clients"),
    "evaluation, reports, callbacks": ("evaluation", "reports", "callbacks"),
    "scores, statistics, metrics, losses, embeddings": ("scores", "statistics", "metrics", "losses", "embeddings"),
    "models": ("models",),
    "flower": ("flower",),
    "data, io": ("data", "io"),
    "experiments, benchmark": ("experiments", "benchmark"),
    "cli, recipe, training, hub, root": ("cli", "recipe", "training", "hub", ""),
}
BUDGETS: dict[str, int] = {}
