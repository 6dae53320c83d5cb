"""Flower: its FedAvg over its simulation engine, with as many actors as processes."""

import sys

import ray
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.clock import Clock
from benchmarks.peers.flower_client import app
from benchmarks.peers.workload import CLIENTS, chosen_workload, make_model, place, tell


def main() -> None:
    workload, actors = chosen_workload()
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        clock = Clock()
        nodes = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": 0, "min_available_nodes": CLIENTS}
        found = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **nodes).start(
            grid=grid,
            initial_arrays=ArrayRecord(make_model(workload).state_dict()),
            num_rounds=workload.rounds,
            train_config=ConfigRecord({"workload": sys.argv[1]}),
            evaluate_fn=lambda round, arrays: clock.tick() if round else None,  # 0 is before the first
        )
        tell(clock.seconds, found.arrays.to_torch_state_dict().values())

    gpus = int(place().type == "cuda") / actors
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": gpus}, "init_args": {"num_cpus": actors}}
    run_simulation(server_app=server, client_app=app, num_supernodes=CLIENTS, backend_config=resources)
    ray.shutdown()


if __name__ == "__main__":
    main()
