"""The plain loop: copy the server's weights in, train, add the weighted client's weights up."""

import os

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.clock import Clock
from benchmarks.peers.workload import CLIENTS, CNN, RATE, Workload, batches, chosen_workload, make_model, place, tell


def train(workload: Workload, rank: int = 0, processes: int = 1) -> tuple[list[float], CNN]:
    """Seconds of the rounds and the server's model; several processes have torch.distributed between them."""
    model = make_model(workload).to(place())
    parameters = list(model.parameters())
    server = [p.detach().clone() for p in parameters]
    mean = [torch.zeros_like(p) for p in server]
    clock = Clock()
    for round in range(workload.rounds):
        torch._foreach_zero_(mean)
        for client in range(rank, CLIENTS, processes):
            with torch.no_grad():
                torch._foreach_copy_(parameters, server)
            optimizer = torch.optim.SGD(parameters, lr=RATE)
            for images, labels in batches(workload, round, client):
                loss = model.loss(images, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(mean, parameters, alpha=1 / CLIENTS)
        if processes > 1:
            flat = parameters_to_vector(mean)
            dist.all_reduce(flat)
            vector_to_parameters(flat, mean)
        server, mean = mean, server
        clock.tick()
    with torch.no_grad():
        torch._foreach_copy_(parameters, server)
    return clock.seconds, model


def main() -> None:
    workload, processes = chosen_workload()
    if processes > 1:
        if place().type == "cuda":
            torch.cuda.set_device(place())
        dist.init_process_group("nccl" if place().type == "cuda" else "gloo")
    rank = int(os.environ.get("RANK", 0))
    seconds, model = train(workload, rank, processes)
    if rank == 0:
        tell(seconds, model.parameters())
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
