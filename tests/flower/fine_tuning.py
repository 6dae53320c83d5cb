"""A small game of digits, fine-tuned towards clients elsewhere, in the three forms."""

from tests.flower.runs import recipe

FORMS = ["exact", "message", "local"]
SIZES = {"a": 12, "b": 25, "c": 16}
MMD2 = {"class_path": "fedgen.losses.MMD2Loss"}
# few sketches: the numbers are those of the simulation, however far from asking
SKETCHED = {
    "class_path": "fedgen.losses.OneMessageLoss",
    "init_args": {"summary": {"class_path": "fedgen.losses.Sketches", "init_args": {"number": 20}}},
}


def fine_tuning(form, rounds=1, loss=None, evaluation=None, held_out=0.2, logger=False, **objective):
    """The recipe; the data are put in by `simulate` and `deploy`."""
    found = recipe(rounds, evaluation, communication_interval=2)
    network = "fedgen.models.networks.Small"
    game = {
        "generator": {"class_path": f"{network}Generator", "init_args": {"width": 4, "latent_dim": 3}},
        "critic": {"class_path": f"{network}Critic", "init_args": {"width": 4}},
        "n_critic": 1,
        "lr": 0.01,
        "ema_decay": 0.9,
    }
    own = {"loss": loss or (SKETCHED if form == "message" else MMD2), "embeddings": ["pixels"], "weight": 5.0}
    found["model"] = {
        "class_path": "fedgen.models.DistributedFineTuning",
        "init_args": {
            "model": {"class_path": "fedgen.models.WGANGP", "init_args": game},
            "objective": {"class_path": "fedgen.losses.EmbeddedLoss", "init_args": own | objective},
            "server_data": {"class_path": "fedgen.data.Digits"},
            "form": form,
            "batch": 8,
            "local": {"server_iterations": 2, "images": 8, "lr": 0.01},
        },
    }
    found["data"]["init_args"]["held_out"] = held_out
    found["trainer"]["logger"] = logger
    if form != "local":
        found["trainer"]["strategy"] = "auto"
        found["data"]["init_args"]["iterations"] = 2
    return found
