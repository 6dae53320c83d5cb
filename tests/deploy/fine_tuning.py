"""A small game of digits, fine-tuned towards clients elsewhere, in the three forms."""

import copy

from tests.deploy.runs import of_owners, recipe

FORMS = ["exact", "message", "local"]
SERVER = {"class_path": "fedgen.data.Digits"}


def fine_tuning(form, rounds=2, loss=None, evaluation=None, embeddings=("pixels",), **objective):
    """The recipe; the data are put in by `simulate` and `deploy`."""
    found = recipe(rounds, evaluation, communication_interval=2)
    network = "fedgen.models.networks.Small"
    model = {
        "generator": {"class_path": f"{network}Generator", "init_args": {"width": 4, "latent_dim": 3}},
        "critic": {"class_path": f"{network}Critic", "init_args": {"width": 4}},
        "n_critic": 1,
        "lr": 0.01,
        "ema_decay": 0.9,
    }
    own = {"loss": loss or {"class_path": "fedgen.losses.MMD2Loss"}, "embeddings": list(embeddings), "weight": 5.0}
    found["model"] = {
        "class_path": "fedgen.models.DistributedFineTuning",
        "init_args": {
            "model": {"class_path": "fedgen.models.WGANGP", "init_args": model},
            "objective": {"class_path": "fedgen.losses.EmbeddedLoss", "init_args": own | objective},
            "server_data": copy.deepcopy(SERVER),
            "form": form,
            "batch": 8,
            "local": {"server_iterations": 2, "images": 8, "lr": 0.01},
        },
    }
    if form != "local":
        found["trainer"]["strategy"] = "auto"
        found["data"]["init_args"]["iterations"] = 3
    return found


__all__ = ["FORMS", "fine_tuning", "of_owners"]
