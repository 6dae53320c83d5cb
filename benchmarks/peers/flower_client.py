"""Flower's side: what a client does with a message. In a file of its own, which Ray's actors import."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers.workload import CNN, PER_CLIENT, RATE, WORKLOADS, Workload, batches, make_model, place

app = ClientApp()


@cache  # one an actor, where the usual app makes one a message
def model_of(workload: Workload) -> CNN:
    return make_model(workload).to(place())


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's answer in a round: its weights after the local steps, and its number of examples."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    config = message.content["config"]
    workload = WORKLOADS[str(config["workload"])]
    model = model_of(workload)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    round, client = int(config["server-round"]) - 1, int(context.node_config["partition-id"])
    for images, labels in batches(workload, round, client):
        loss = model.loss(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": PER_CLIENT})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
