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
    """The app of each client, as its node's config says (docs/deployment-data.md, docs/deployment.md)."""
    return ForwardingApp(recipe, app_here) if Path(sys.argv[0]).name == ONE_MESSAGE else app_here(recipe)


def app_here(recipe: Path) -> ClientApp:
    """The app of a client, which answers in this process."""
    from fedgen.flower.app.app_sides import client_side

    return client_side(recipe)


def server_app(recipe: Path) -> ServerApp:
    """The server's app: trains, evaluates and prints tables as `fedgen fit`, by the run's config (pyproject.toml)."""
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
