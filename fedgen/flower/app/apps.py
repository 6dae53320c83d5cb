"""The two Flower apps of a deployed recipe; Flower loads this module for every message, so it imports no torch.

As a command it is a client's worker (`fedgen.flower.client.worker`).
"""

import sys
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedgen.flower.client.worker import ForwardingApp, serve

ONE_MESSAGE = "flwr-clientapp"  # Flower's command that a SuperNode starts for each message


def client_app(recipe: Path) -> ClientApp:
    """The app of each client.

    A node's config says where its data lie ("data-path"), or names a file on its disk with their class and how they are
    read ("data-config"); it may say which client it is ("partition-id" of "num-partitions"), what it is called ("name",
    by default as that folder or file) and where it keeps what is its own between turns ("state-path", by default beside
    the data). Where Flower simulates nodes they have no config but their numbers: then node k takes the k-th folder of
    the run config's "simulation-data", or a class that takes `partition_id` its part. What the node's owner allows is
    in a file that its config names ("policy-path"), or its environment (FEDGEN_POLICY).

    Where Flower started this process for one message alone, the message is answered by a worker, a process that stays
    for the run's next ones ("worker-idle" of the node's config: how many seconds it waits for them, by default 600; 0
    for no worker). Elsewhere, as in the actors of Flower's simulation, it is answered here.
    """
    if Path(sys.argv[0]).name == ONE_MESSAGE:
        return ForwardingApp(recipe, app_here)
    return app_here(recipe)


def app_here(recipe: Path) -> ClientApp:
    """The app of a client, which answers in this process."""
    from fedgen.flower.app.app_sides import client_side

    return client_side(recipe)


def server_app(recipe: Path) -> ServerApp:
    """The server's app: trains, evaluates, keeps checkpoints and prints tables as `fedgen fit`.

    The run's config says how many clients to wait for ("clients") and how long ("wait", seconds; as long, too, where
    nothing comes of a round), where the run folder is ("output"; a run that it holds goes on, from its last checkpoint
    or as "ckpt-path" says: "previous" for the one before it, or a path), how long a round's clients have
    ("round-deadline", seconds; 0 for no end), which part of the clients' weight must answer a loss at the server
    ("least-answers"), how many images a client may say it has ("most-images"), whether single updates, answers and
    statistics are hidden from the server ("secure-aggregation"; "update-range", the largest change of an entry in a
    turn; "range.NAME", the largest entry of a statistic), what noise statistics have ("statistics-epsilon",
    "statistics-delta" and "statistics-radius"), which classes labels are of ("classes", all others' clients being left
    out) and how many images each has ("label-counts").
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedgen.flower.app.app_sides import run_server

        run_server(recipe, grid, context.run_config)

    return app


def worker_app(recipe: Path) -> ClientApp:
    """The app of a worker, which keeps the images of a message for the next."""
    from fedgen.flower.client.local_data import KeptImages, LocalDataModule

    LocalDataModule.kept = KeptImages()
    return app_here(recipe)


if __name__ == "__main__":
    serve(worker_app)
