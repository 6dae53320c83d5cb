"""Three forms of one objective: what each trains, sends, logs and refuses; stopped runs go on to the bit."""

import copy

import pytest
import torch
from torch import nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Partition
from fedgen.data import Examples
from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.losses import (
    AdaptiveWeight,
    DistributedLoss,
    EmbeddedLoss,
    FastFIDLoss,
    MMD2Loss,
    Nystrom,
    OneMessageLoss,
    Sketches,
)
from fedgen.losses.one_message import local_drift
from fedgen.models import GAN, WGANGP, DistributedFineTuning, FineTuning, Hinge, LocalSteps
from fedgen.models.checkpoint_file import read_generator
from fedgen.models.networks import SmallCritic, SmallGenerator
from fedgen.models.stylegan2 import StyleGAN2
from fedgen.seeds import seed_all
from tests.losses.simple import two_numbers
from tests.models.stylegan2.test_stylegan2 import make as make_stylegan2
from tests.quick import first_quick
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")
SIZES = (12, 5, 23)
FORMS = ["exact", "message", "local"]


def noise(count, seed, name="noise"):
    draws = torch.Generator().manual_seed(seed)
    dark = torch.linspace(0.3, 1, count).view(-1, 1, 1, 1)
    inputs = (torch.rand(count, 1, 8, 8, generator=draws) * 255 * dark).to(torch.uint8)
    return Examples(inputs, torch.zeros(count, dtype=torch.int64), name, ())


class InOrder(Partition):
    """Clients of these sizes, one after another."""

    def __init__(self, sizes=SIZES):
        self.sizes, self.num_clients = sizes, len(sizes)

    def assign(self, examples, seed):
        return [part.numpy() for part in torch.arange(sum(self.sizes)).split(self.sizes)]


def gan(kind=WGANGP, **options):
    torch.manual_seed(0)
    networks = SmallGenerator(latent_dim=3, width=2), SmallCritic(width=2)
    more = {"n_critic": 1} if kind is WGANGP else {"loss": Hinge()}
    return kind(*networks, **more, **({"lr": 0.01} | options))


def objective(loss=None, names=("a",), weight=5.0, **options):
    return EmbeddedLoss(loss or MMD2Loss(), [two_numbers(name) for name in names], weight=weight, **options)


def make(form, model=None, loss=None, local=None, **options):
    given = loss or (OneMessageLoss(summary=Nystrom(20)) if form == "message" else None)
    made = options.pop("objective", None) or objective(given)
    local = local or LocalSteps(server_iterations=2, images=6, lr=0.01)
    return DistributedFineTuning(
        model or gan(),
        made,
        **({"server_data": noise(30, 9, "server"), "form": form, "batch": 4, "local": local, "seed": 3} | options),
    )


def fit(module, rounds=1, data=None, ckpt_path=None, interval=2, strategy=None, **options):
    local = module.form == "local"
    strategy = strategy or (FedAvgStrategy(interval, seed=0, **options) if local else "auto")
    data = data or FederatedDataModule(noise(sum(SIZES), 1), InOrder(), 4, held_out=0.0, iterations=interval, seed=0)
    trainer = quiet_trainer(rounds, strategy=strategy, num_sanity_val_steps=0, limit_val_batches=0)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


def copied(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def flat(network):
    return torch.cat([p.detach().double().flatten() for p in network.parameters()])


# ---- what trains ----


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", first_quick(["WGANGP", "GAN", "StyleGAN2"]))
def test_every_form_trains_every_game_and_says_what_it_sent(form, kind):
    model = make_stylegan2() if kind == "StyleGAN2" else gan({"WGANGP": WGANGP, "GAN": GAN}[kind], ema_decay=0.5)
    module = make(form, model)
    before = copied(module)
    trainer = fit(module, rounds=2)
    after = copied(module)
    changed = {name.split(".")[:2][-1] for name in before if not torch.equal(before[name], after[name])}
    assert {"generator", "critic", "generator_ema"} <= changed
    metrics = trainer.callback_metrics
    assert {"generator_loss", "critic_loss", "kid_loss/a", "kid_loss/weight", "megabytes_up"} <= metrics.keys()
    assert metrics["kid_loss/weight"] == 5
    assert module.optimised_on == ["a"]
    assert module.sample(3, torch.Generator().manual_seed(0)).shape == (3, 1, 8, 8)


def test_exact_is_the_game_with_a_loss_to_the_pool_that_nobody_holds():
    """The same run with the pool at hand ends in the same weights."""
    module, twin = make("exact"), make("exact")
    twin.objective.losses = nn.ModuleList([MMD2Loss(aggregate="avg")])
    for each in (module, twin):
        fit(each, rounds=2)
    for ours, theirs in zip(copied(module).values(), copied(twin).values()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def exact_step(model, lr, steps=1):
    """The generator after SGD on 5 MMD^2 to the pool, by hand, at the latents that all clients draw."""
    network = copy.deepcopy(model.generator).train()
    loss = objective().set_references(noise(sum(SIZES), 1).inputs.split(SIZES))
    batches = []
    for step in range(steps):
        seed_all(3, "latents", 0, step)
        batches.append(torch.randn(6, 3))
        network.zero_grad()
        loss(network(batches[-1])).backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= lr * parameter.grad
    return network, torch.stack(batches)


def local_run(steps, lr, **options):
    local = LocalSteps(server_iterations=0, images=6, lr=lr, optimizer="sgd", common_latents=True)
    module = make("local", local=local, **options)
    first = copy.deepcopy(module.model)
    fit(module, interval=steps)
    return first, flat(module.model.generator)


def test_local_equals_exact_for_one_step_of_sgd():
    first, merged = local_run(1, lr=0.1)
    exact, _ = exact_step(first, 0.1)
    moved = (flat(exact) - flat(first.generator)).norm()
    assert moved > 1e-2
    assert (merged - flat(exact)).norm() < 1e-5 * moved


def test_local_drifts_from_exact_over_several_steps_as_measured():
    first, merged = local_run(4, lr=0.1)
    exact, latents = exact_step(first, 0.1, 4)
    drift = ((merged - flat(exact)).norm() / (flat(exact) - flat(first.generator)).norm()).item()
    own = objective(MMD2Loss(aggregate="own")).set_references(noise(sum(SIZES), 1).inputs.split(SIZES))
    measured = local_drift(first.generator.train(), own, SIZES, latents, 0.1)
    assert measured[0] < 1e-5
    assert measured[-1] > 100 * measured[0]
    assert measured[-1] == pytest.approx(drift, rel=0.05)


def test_local_turns_move_the_generator_alone_and_the_server_plays_after_them():
    module = make("local")
    states = []

    class Watching(ClientAlgorithm):
        def end_turn(self, client, model, iterations):
            states.append(copied(module))

    class Watched(type(module)):
        def on_round_end(self, iterations):
            states.append(copied(module))
            super().on_round_end(iterations)
            states.append(copied(module))

    module.__class__ = Watched
    before = copied(module)
    trainer = fit(module, strategy=FedAvgStrategy(2, seed=0, client_algorithm=Watching()))
    for state in states[:4]:  # three turns and their merger
        moved = {name for name in before if not torch.equal(before[name], state[name])}
        assert moved
        assert all(name.startswith("model.generator.") for name in moved)
    assert any(not torch.equal(states[3][n], states[4][n]) for n in before if n.startswith("model.critic."))
    assert int(module.server_iterations) == 2
    games = [int(next(iter(optimizer.state.values()))["step"]) for optimizer in trainer.optimizers[:2]]
    assert games == [2, 2]
    assert not trainer.optimizers[2].state  # the clients', reset


def test_the_server_of_local_counts_its_own_iterations():
    """Its generator is due at every n_critic-th of them, however many steps clients took between."""
    model = gan()
    model.n_critic = 3
    module = make("local", model, local=LocalSteps(server_iterations=3, images=6))
    trainer = fit(module, rounds=2)
    generator, critic = (next(iter(optimizer.state.values()))["step"] for optimizer in trainer.optimizers[:2])
    assert (int(generator), int(critic)) == (2, 6)


CASES = [
    ("exact", "WGANGP"),
    ("message", "WGANGP"),
    ("local", "WGANGP"),
    ("exact", "StyleGAN2"),
    ("local", "StyleGAN2"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kind"), CASES)
def test_a_resumed_run_ends_to_the_bit(form, kind, tmp_path):
    def build():
        return make(form, make_stylegan2() if kind == "StyleGAN2" else gan(ema_decay=0.9), objective=None)

    whole, first, second = build(), build(), build()
    fit(whole, 2)
    fit(first, 1).save_checkpoint(tmp_path / "half.ckpt")
    fit(second, 2, ckpt_path=tmp_path / "half.ckpt")
    found = copied(second)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, found[name]), name
    asked = 2 if form == "message" else 1  # once in each process
    assert second.traffic.up == whole.traffic.up * asked
    assert second.traffic.down == whole.traffic.down * asked


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_samples_by_itself_and_remembers_what_was_optimised(form, tmp_path):
    module = make(form, objective=objective(None if form != "message" else OneMessageLoss(summary=Sketches(20)), "ab"))
    fit(module).save_checkpoint(tmp_path / "one.ckpt")
    again = DistributedFineTuning.load_from_checkpoint(tmp_path / "one.ckpt", weights_only=True)
    draws = [torch.Generator().manual_seed(0) for _ in range(2)]
    assert torch.equal(again.sample(4, draws[0]), module.sample(4, draws[1]))
    assert again.optimised_on == ["a", "b"]
    assert again.hparams == module.hparams


@pytest.mark.parametrize("kind", ["WGANGP", "StyleGAN2"])
def test_its_generator_can_be_taken_from_a_checkpoint(kind, tmp_path):
    module = make("exact", make_stylegan2() if kind == "StyleGAN2" else gan(ema_decay=0.5))
    fit(module).save_checkpoint(tmp_path / "one.ckpt")
    generator = read_generator(tmp_path / "one.ckpt")
    for ours, theirs in zip(generator.parameters(), module.model.averaged.parameters()):
        assert torch.equal(ours, theirs)
    assert generator.optimised_on == ["a"]


def test_stylegan2s_sampling_settings_are_its_own():
    module = make("exact", make_stylegan2())
    module.sampling = {"truncation": 0.5}
    assert module.model.sampling["truncation"] == 0.5
    assert module.sampling == module.model.sampling
    assert not hasattr(make("exact"), "sampling")


# ---- what is sent ----


def test_bytes_of_local_are_the_generators_for_every_client_both_ways():
    module = make("local")
    trainer = fit(module, rounds=2)
    generator = module.model.generator
    floats = sum(t.numel() * 4 for t in generator.state_dict().values() if t.is_floating_point())
    counters = sum(t.numel() * 8 for t in generator.state_dict().values() if not t.is_floating_point())
    assert module.traffic.up == 2 * 3 * (floats + counters)
    assert module.traffic.down == 2 * 3 * (floats + counters + 8)  # and how many iterations the server has made
    assert trainer.callback_metrics["megabytes_up"] == pytest.approx(3 * (floats + counters) / 1e6)


def test_bytes_of_exact_come_every_step_and_of_message_once():
    exact, message = make("exact"), make("message")
    for module in (exact, message):
        fit(module, rounds=2)
    assert exact.traffic.questions == 4
    assert exact.traffic == exact.objective.losses[0].traffic
    assert message.traffic.questions == 1
    once = message.traffic.up
    assert once > 3 * 8 * (20 + 2)
    fit(message, rounds=4)
    assert message.traffic.up == once


def test_bytes_are_said_once_a_fit(caplog):
    with caplog.at_level("INFO"):
        fit(make("exact"), rounds=2)
    said = [record.message for record in caplog.records if "form 'exact'" in record.message]
    assert len(said) == 1
    assert "to the clients and" in said[0]


# ---- other objectives ----


@pytest.mark.parametrize(
    ("form", "loss"),
    [
        ("exact", FastFIDLoss(aggregate="avg")),
        ("local", FastFIDLoss(aggregate="avg")),
        ("message", FastFIDLoss()),
        ("exact", DistributedLoss(precision=torch.float32)),
        ("message", OneMessageLoss(summary=Sketches(10), precision=torch.float32)),
    ],
    ids=str,
)
def test_fid_takes_mmd2s_place_and_settings_of_ones_own_stay(form, loss):
    module = make(form, loss=loss)
    trainer = fit(module)
    assert f"{loss.score}_loss/a" in trainer.callback_metrics
    if isinstance(loss, DistributedLoss | OneMessageLoss):
        assert module.objective.losses[0].precision == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_several_embeddings_and_large_batches_in_chunks(form):
    loss = OneMessageLoss(summary=Nystrom(20)) if form == "message" else None
    given = objective(loss, ("a", "b"), separate=form != "local", chunk=4, num_images=20 if form != "local" else None)
    trainer = fit(make(form, objective=given))
    assert {"kid_loss/a", "kid_loss/b"} <= trainer.callback_metrics.keys()


# ---- what is refused ----


def test_a_client_without_images_is_named_before_training_starts():
    class Empty(FederatedDataModule):
        @property
        def clients(self):
            first, *rest = super().clients
            return [first, *(type(c)(c.name, c.data, c.train[:0], c.held_out) for c in rest)]

    data = Empty(noise(sum(SIZES), 1), InOrder(), 4, held_out=0.0, iterations=2)
    for form in FORMS:
        with pytest.raises(ValueError, match="partition"):
            fit(make(form), data=data)
    alone = FederatedDataModule(noise(13, 1), InOrder((12, 1)), 4, held_out=0.0, iterations=2)
    for form in FORMS:
        with pytest.raises(ValueError, match="statistic"):
            fit(make(form), data=alone)


def test_a_recipe_can_name_all_of_it():
    from jsonargparse import ArgumentParser

    networks = {name: {"class_path": f"fedgen.models.networks.Small{name}"} for name in ("Generator", "Critic")}
    summary = {"class_path": "fedgen.losses.Nystrom", "init_args": {"number": 20}}
    loss = {"class_path": "fedgen.losses.OneMessageLoss", "init_args": {"summary": summary}}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(DistributedFineTuning, "model")
    given = {
        "model": {
            "class_path": "fedgen.models.WGANGP",
            "init_args": {"generator": networks["Generator"], "critic": networks["Critic"]},
        },
        "objective": {
            "class_path": "fedgen.losses.EmbeddedLoss",
            "init_args": {"loss": loss, "embeddings": ["pixels"], "weight": 5.0},
        },
        "server_data": {"class_path": "fedgen.data.Digits"},
        "form": "message",
        "local": {"lr": 0.5},
    }
    instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # renamed in jsonargparse 4.49
    module = instantiate(parser.parse_object({"model": given})).model
    assert module.objective.losses[0].summary == Nystrom(20)
    assert module.local.lr == 0.5


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="message"):
        make("secret")
    with pytest.raises(ValueError, match="FIDs"):
        make("local", loss=FastFIDLoss())
    with pytest.raises(ValueError, match="DistributedLoss"):
        make("local", loss=DistributedLoss())
    with pytest.raises(ValueError, match="critic"):
        make("local", objective=objective(weight=AdaptiveWeight()))
    with pytest.raises(ValueError, match="StyleGAN2"):
        make("exact", gan(GAN, generator_trained_by="server"))
    with pytest.raises(ValueError, match="FineTuning"):
        make("exact", FineTuning(SmallGenerator(latent_dim=3, width=2)))
    with pytest.raises(ValueError, match="FedAvgStrategy"):
        fit(make("local"), strategy="auto")
    with pytest.raises(ValueError, match="FedAvgStrategy"):
        fit(make("exact"), strategy=FedAvgStrategy(2))
    with pytest.raises(ValueError, match="objective"):
        fit(DistributedFineTuning(gan(), None, noise(9, 1)))
    with pytest.raises(ValueError, match="server_data"):
        fit(make("exact", server_data=None))
    with pytest.raises(ValueError, match="data"):
        fit(make("exact", server_data=noise(0, 1, "server")))
    with pytest.raises(ValueError, match="positive"):
        LocalSteps(lr=0)
    assert StyleGAN2 is type(make("exact", make_stylegan2()).model)
