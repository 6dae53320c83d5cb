"""A client's worker whose app does as its message's type says; and, as a program, a process that asks it."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedgen.flower.app.apps import app_here
from fedgen.flower.client import worker


def app_of(recipe):
    """Answers with its process, the recipe's name and what the context has counted."""

    def answer(message, context):
        kind = message.metadata.message_type
        if kind == "query.fails":
            raise LookupError("no such thing")
        if kind == "query.killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "query.lasts":
            (Path(os.environ["FLWR_HOME"]) / "busy").touch()
            time.sleep(600)
        times = context.state.metric_records.setdefault("times", MetricRecord({"count": 0}))
        times["count"] += 1
        said = {"process": os.getpid(), "recipe": recipe.name, "task": TaskIdentity.task_id}
        return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=message)

    return answer


def context(run=7, node=5, **config):
    return Context(run, node, config, RecordDict(), {})


def ask(kind="query", given=None, recipe="recipe.yaml", task=1):
    """The worker's answer, as a dictionary."""
    given = context() if given is None else given
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = given.run_id, given.node_id, task
    message = Message(RecordDict(), 1, kind)
    reply = worker.ForwardingApp(recipe, app_here)(message, given)
    assert reply.metadata.dst_node_id == message.metadata.src_node_id
    return dict(reply.content.config_records["said"])


def use(monkeypatch, home):
    """Has workers of this module started, with their places in a folder."""
    monkeypatch.setattr(worker, "MODULE", __name__)
    monkeypatch.setenv("FLWR_HOME", str(home))


if __name__ == "__main__":
    if sys.argv[1] == "ask":  # KIND IDLE
        worker.MODULE = "tests.flower.echo_worker"
        print(json.dumps(ask(sys.argv[2], context(**{worker.IDLE: float(sys.argv[3])}))))
    else:
        worker.serve(app_of)
