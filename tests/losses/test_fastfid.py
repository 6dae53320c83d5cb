import copy
import math

import pytest
import torch
from torch import Tensor
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torchmetrics.image.fid import _compute_fid

from fedgen.losses.fastfid import FastFIDLoss
from fedgen.losses.moments import BatchMoments, EMAMoments, Moments, QueueMoments
from fedgen.scores import FrechetReference, frechet_distance
from fedgen.statistics import Gaussian, summarize
from tests.losses.frechet_cases import DIM, by_svd, draw, least_gradient, value_and_gradient
from tests.quick import first_quick

CLIENTS = [draw(60, 1), draw(5, 2, 2, 0.3), draw(9, 3, 1, -0.5), draw(6, 4, 0.5)]
SIZES = [len(client) for client in CLIENTS]
MOMENTS = {
    "batch": BatchMoments,
    "queue": lambda: QueueMoments(64, dtype=torch.float64),
    "average": lambda: EMAMoments(0.9),
}
BATCHES = {
    "two images": draw(2, 11, 1.2, 0.3),
    "few": draw(8, 12, 1.2, 0.3),
    "as many as features": draw(DIM, 13, 1.2, 0.3),
    "one more": draw(DIM + 1, 14, 1.2, 0.3),
    "many": draw(50, 15, 1.2, 0.3),
}


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("batch", first_quick(["two images", "few", "many"]))
@pytest.mark.parametrize("weights", ["examples", "uniform", [0.1, 0.5, 0.0, 0.4]])
def test_values_are_the_scores(batch: str, moments: str, weights: str | list[float]) -> None:
    reference = FrechetReference.from_features(CLIENTS, weights).score(BATCHES[batch], errors=False)
    for aggregate in ("all", "avg"):
        loss = FastFIDLoss(MOMENTS[moments](), aggregate).set_references(CLIENTS, weights)
        value, _ = value_and_gradient(loss, BATCHES[batch])
        assert value == pytest.approx(reference.values[aggregate], rel=1e-12)
        with torch.no_grad():  # no decomposition's vectors, and the first batch again is the first batch
            assert float(FastFIDLoss(aggregate=aggregate).set_references(CLIENTS, weights)(BATCHES[batch])) == (
                pytest.approx(value, rel=1e-12)
            )
    own = FastFIDLoss(MOMENTS[moments](), "own").set_references(CLIENTS, weights)
    assert value_and_gradient(own, BATCHES[batch])[0] == pytest.approx(reference.values["avg"], rel=1e-12)
    for client, score in enumerate(reference.per_client.tolist()):
        own = FastFIDLoss(MOMENTS[moments](), "own").set_references(CLIENTS, weights)
        own.start_turn(client)
        assert value_and_gradient(own, BATCHES[batch])[0] == pytest.approx(score, rel=1e-12)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("real", [draw(60, 1), draw(5, 2)], ids=["many real", "few real"])
def test_values_are_the_peers(batch: str, real: Tensor) -> None:
    x = BATCHES[batch]
    value = float(FastFIDLoss().set_references([real])(x))
    sides = [fid_features_to_statistics(side) for side in (real, x)]
    theirs = fid_statistics_to_metric(*sides, verbose=False)["frechet_inception_distance"]
    assert value == pytest.approx(theirs, rel=1e-6)
    assert value == pytest.approx(float(_compute_fid(real.mean(0), real.T.cov(), x.mean(0), x.T.cov())), rel=1e-6)


def test_one_dimension_by_hand() -> None:
    real, made = torch.tensor([[-3.0], [3.0]]), torch.tensor([[1.0], [3.0]])  # variances 18 and 2, means 0 and 2
    value, gradient = value_and_gradient(FastFIDLoss().set_references([real]), made)
    assert value == pytest.approx(2**2 + (18**0.5 - 2**0.5) ** 2)  # 12
    # 2/m (2 - 0) + 2/(m - 1) (1 - sqrt(18)/sqrt(2)) (x - 2)
    torch.testing.assert_close(gradient, torch.tensor([[2 + 4.0], [2 - 4.0]]))


@pytest.mark.parametrize("ddof", [0, 1])
def test_ddof_is_the_scores(ddof: int) -> None:
    x = BATCHES["few"][:4]
    for client in (CLIENTS[0], CLIENTS[1]):
        loss = FastFIDLoss(ddof=ddof).set_references([client])
        assert float(loss(x)) == pytest.approx(frechet_distance(summarize(client), summarize(x), ddof)[0], rel=1e-12)
        assert torch.autograd.gradcheck(loss, x.clone().requires_grad_())


def test_summaries_do_as_well_as_features() -> None:
    x = BATCHES["few"]
    for aggregate in ("all", "avg", "own"):
        features = FastFIDLoss(aggregate=aggregate).set_references(CLIENTS)
        summaries = FastFIDLoss(aggregate=aggregate).set_references([summarize(client) for client in CLIENTS])
        (a, left), (b, right) = value_and_gradient(features, x), value_and_gradient(summaries, x)
        assert a == b
        assert torch.equal(left, right)


REFERENCES = {
    "full rank": [CLIENTS[0]],
    "low rank": [CLIENTS[1]],
    "a constant feature": [CLIENTS[0] * (torch.arange(DIM) > 0)],
    "clients": CLIENTS,
}


@pytest.mark.parametrize("clients", REFERENCES)
@pytest.mark.parametrize("images", first_quick([3, DIM + 1]))
@pytest.mark.parametrize("aggregate", ["all", "avg"])
def test_gradcheck(clients: str, images: int, aggregate: str) -> None:
    loss = FastFIDLoss(aggregate=aggregate).set_references(REFERENCES[clients])
    assert torch.autograd.gradcheck(loss, draw(images, 5, 1.3, 0.2).requires_grad_())


SHARES = [
    ("queue", "all", "full rank"),
    ("queue", "avg", "low rank"),
    ("average", "avg", "full rank"),
    ("average", "all", "clients"),
    ("queue", "avg", "full rank"),
    ("average", "avg", "clients"),
]


@pytest.mark.parametrize(("moments", "aggregate", "clients"), first_quick(SHARES, of=2, several=True))
def test_gradcheck_of_the_batchs_share_in_a_population(moments: str, aggregate: str, clients: str) -> None:
    kinds = {"queue": QueueMoments(40, False, torch.float64), "average": EMAMoments(0.8, rescale=False)}
    loss = FastFIDLoss(kinds[moments], aggregate).set_references(REFERENCES[clients])
    for seed in range(6):
        value_and_gradient(loss, draw(7, 20 + seed))
    loss.eval()
    batch = draw(4, 5, 1.3, 0.2).requires_grad_()
    assert torch.autograd.gradcheck(loss, batch)
    _, shared = value_and_gradient(loss, batch)
    loss.moments.rescale = True
    _, whole = value_and_gradient(loss, batch)
    factor = 40 / 4 if moments == "queue" else (1 - 0.8**7) / (1 - 0.8)  # of images, or of seven batches' weights
    torch.testing.assert_close(whole, shared * factor, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("aggregate", ["all", "avg"])
def test_gradient_equals_autograd_through_singular_values(batch: str, moments: str, aggregate: str) -> None:
    clients = [torch.cat(CLIENTS)] if aggregate == "all" else CLIENTS
    weights = [1.0] if aggregate == "all" else [size / sum(SIZES) for size in SIZES]
    loss = FastFIDLoss(MOMENTS[moments](), aggregate).set_references(CLIENTS)
    value, gradient = value_and_gradient(loss, BATCHES[batch])
    expected, theirs = by_svd(BATCHES[batch], clients, weights)
    assert value == pytest.approx(expected, rel=1e-12)
    assert float((gradient - theirs).norm() / theirs.norm()) < 1e-10


def test_many_small_clients_at_once_equal_a_loop() -> None:
    sizes = torch.randint(2, 40, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    clients = [draw(size, seed, 1 + seed / 30, dim=32) for seed, size in enumerate(sizes)]
    weights = [size / sum(sizes) for size in sizes]
    for images in (5, 20, 50):
        batch = draw(images, 99, dim=32)
        value, gradient = value_and_gradient(FastFIDLoss(aggregate="avg").set_references(clients), batch)
        expected, theirs = by_svd(batch, clients, weights)
        assert value == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(gradient, theirs, rtol=0, atol=1e-10 * float(theirs.norm()))


COLLAPSED = draw(16, 8, dim=24)
DEGENERATE = {
    "each image four times": (COLLAPSED.repeat(4, 1), 15),
    "centred already": (draw(10, 9, dim=24) - draw(10, 9, dim=24).mean(0), 9),
    "in a subspace": (draw(20, 9, dim=24) * (torch.arange(24) < 5), 5),
    "more images than features, in a subspace": (draw(60, 9, dim=24) * (torch.arange(24) < 5), 5),
    "one image apart": (torch.cat([torch.zeros(9, 24), torch.ones(1, 24)]).double(), 1),
    "far from the origin": (draw(10, 9, dim=24) + 1e4, 9),
}


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("reals", [200, 20], ids=["many real", "few real"])
def test_gradient_of_a_degenerate_batch_is_that_of_least_norm(name: str, reals: int, moments: str) -> None:
    batch, rank = DEGENERATE[name]
    client = draw(reals, 7, 1.5, dim=24)
    expected = least_gradient(batch, client, rank)
    kind = MOMENTS[moments]()
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
        loss = FastFIDLoss(copy.deepcopy(kind), dtype=dtype).set_references([client])
        _, gradient = value_and_gradient(loss, batch)
        assert float((gradient - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("images", [2, 7, 50])
@pytest.mark.parametrize("shift", [0.0, 1.0, 1234.567])
def test_gradient_of_equal_images_is_that_of_the_mean(
    moments: str, dtype: torch.dtype, images: int, shift: float
) -> None:
    batch = (draw(1, 3) + shift).to(dtype).repeat(images, 1)
    client = draw(40, 1)
    value, gradient = value_and_gradient(FastFIDLoss(MOMENTS[moments]()).set_references([client]), batch)
    expected = 2 / images * (batch.double() - client.mean(0))
    torch.testing.assert_close(gradient, expected.to(dtype), rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=1e-12)
    assert value == pytest.approx(frechet_distance(summarize(client), summarize(batch))[0], rel=1e-9)


def test_rounding_of_nearly_equal_images_is_not_taken_for_a_direction() -> None:
    """A network that sees equal latents in one batch gives features that differ by rounding."""
    batch = (draw(16, 3, dim=24).float() + 3).repeat(4, 1)
    noisy = batch * (1 + (torch.rand(batch.shape, generator=torch.Generator().manual_seed(0)) - 0.5) * 1.2e-7)
    client = draw(200, 1, dim=24)
    loss = FastFIDLoss().set_references([client])
    expected = least_gradient(batch.double(), client, 15)
    assert float((value_and_gradient(loss, noisy)[1] - expected).norm() / expected.norm()) < 1e-5


def test_the_real_images_themselves_are_at_distance_zero_with_no_gradient() -> None:
    for count in (6, 40):
        batch = draw(count, 1)
        value, gradient = value_and_gradient(FastFIDLoss().set_references([batch]), batch)
        assert value == pytest.approx(0, abs=1e-12)
        assert float(gradient.norm()) < 1e-7


def test_constant_references() -> None:
    client = torch.ones(40, DIM).double()
    value, gradient = value_and_gradient(FastFIDLoss().set_references([client]), BATCHES["few"])
    batch = BATCHES["few"]
    assert value == pytest.approx(frechet_distance(summarize(client), summarize(batch))[0], rel=1e-12)
    expected = 2 / 8 * (batch.mean(0) - 1) + 2 / 7 * (batch - batch.mean(0))
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("images", [64, 600])
@pytest.mark.parametrize("reals", [2000, 100])
def test_float32_keeps_its_digits(images: int, reals: int) -> None:
    """Where eigenvalues of C C_i lose 1e-3 of the value and 0.2 of the gradient."""
    dim = 256
    client, batch = draw(reals, 1, dim=dim), draw(images, 2, 1.3, 0.1, dim=dim).float()
    expected, theirs = by_svd(batch, [client], [1.0])
    for moments in (BatchMoments(), QueueMoments(1000)):
        value, gradient = value_and_gradient(FastFIDLoss(moments, dtype=torch.float32).set_references([client]), batch)
        assert value == pytest.approx(expected, rel=1e-6)
        assert float((gradient - theirs).norm() / theirs.norm()) < 1e-5
        assert gradient.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_autocast_changes_nothing_but_the_features(dtype: torch.dtype) -> None:
    client, batch = draw(500, 1, dim=64), draw(32, 2, 1.3, 0.1, dim=64).bfloat16()
    loss = FastFIDLoss(dtype=dtype).set_references([client])
    expected, theirs = by_svd(batch, [client], [1.0])
    with torch.autocast("cpu", torch.bfloat16):
        value, gradient = value_and_gradient(loss, batch)
    assert value == pytest.approx(expected, rel=1e-6)
    assert gradient.dtype == torch.bfloat16
    assert float((gradient.double() - theirs).norm() / theirs.norm()) < 4e-3  # bfloat16's own rounding


def test_second_derivatives_are_refused() -> None:
    features = BATCHES["few"].clone().requires_grad_()
    value = FastFIDLoss().set_references(CLIENTS)(features)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(value, features, create_graph=True)


def test_errors_name_input_and_remedy() -> None:
    loss = FastFIDLoss().set_references(CLIENTS)
    with pytest.raises(ValueError, match="covariance"):
        loss(draw(1, 1))
    for moments in ("queue", "average"):
        other = FastFIDLoss(MOMENTS[moments]()).set_references(CLIENTS)
        with pytest.raises(ValueError, match="larger"):
            other(draw(1, 1))
        assert int(other.moments.seen) == 0
    assert float(FastFIDLoss(ddof=0).set_references(CLIENTS)(draw(1, 1))) > 0
    broken = draw(8, 1)
    broken[2:5, 0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        loss(broken)
    own = FastFIDLoss(aggregate="own").set_references(CLIENTS)
    own.start_turn(4)
    with pytest.raises(ValueError, match="set_references"):
        own(draw(8, 1))
    with pytest.raises(ValueError, match="references"):
        FastFIDLoss()(draw(8, 1))
    with pytest.raises(ValueError, match=rf"floating features \[m, {DIM}\]"):
        loss(draw(8, 1, dim=5))
    with pytest.raises(ValueError, match="at least one client"):
        FastFIDLoss().set_references([])
    with pytest.raises(ValueError, match="embedding"):
        FastFIDLoss(aggregate="avg").set_references([draw(8, 1), draw(8, 1, dim=5)])
    with pytest.raises(ValueError, match=r"client 1: .*at least two images"):
        FastFIDLoss(aggregate="avg").set_references([draw(8, 1), draw(1, 1)])
    assert float(FastFIDLoss().set_references([draw(8, 1), draw(1, 1)])(draw(8, 2))) > 0  # a pool may have such clients
    with pytest.raises(ValueError, match="features"):
        FastFIDLoss().set_references([draw(8, 1), draw(8, 1).index_fill(0, torch.tensor([3]), math.inf)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh_every": 0}, "refresh_every=0"),
        ({"refresh_every": 4}, "a queue or an average"),
        ({"ddof": 2}, "ddof=2"),
        ({"aggregate": "worst"}, "aggregate must be one of"),
        ({"dtype": torch.float16}, "dtype must be"),
    ],
)
def test_options_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FastFIDLoss(**options)


def test_references_are_not_saved_and_keep_their_precision() -> None:
    loss = FastFIDLoss(aggregate="avg").set_references(CLIENTS)
    assert not loss.state_dict()
    before = float(loss(BATCHES["few"]))
    model = torch.nn.Module()
    model.loss = loss
    assert float(model.half().loss(BATCHES["few"])) == before
    assert {buffer.device.type for buffer in model.to("meta").buffers()} == {"meta"}


def test_a_loss_forgets_earlier_references() -> None:
    loss = FastFIDLoss().set_references(CLIENTS)
    loss.set_references([draw(30, 5, dim=7)])
    assert loss.dim == 7
    remembering = FastFIDLoss(QueueMoments(64)).set_references(CLIENTS)
    with pytest.raises(ValueError, match="remembers"):
        remembering.set_references([draw(30, 5, dim=7)])


def scale_found(moments: Moments, refresh_every: int = 1, images: int = 16, dim: int = 32) -> float:
    """The scale of an isotropic generator that descent on the loss ends at; 1 is right."""
    generator = torch.Generator().manual_seed(0)
    population = Gaussian(1e15, torch.zeros(dim).double(), scatter=torch.eye(dim).double() * 1e15)
    loss = FastFIDLoss(moments, refresh_every=refresh_every).set_references([population])
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    # where the population lags by some tens of steps, larger steps would overshoot
    optimizer = torch.optim.SGD([scale], lr=(0.01 if moments.remembers else 0.2) / dim)
    found = []
    for step in range(200):
        noise = torch.randn(images, dim, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        loss(scale * noise).backward()
        optimizer.step()
        if step >= 100:
            found.append(scale.item())
    return sum(found) / len(found)


def scale_expected(images: int, dim: int = 32) -> float:
    """E[FID] = s^2 d (1 + 1/n) + d - 2 s E tr sqrt(S), S the sample covariance at s = 1, has its minimum here."""
    generator = torch.Generator().manual_seed(1)
    roots = []
    for _ in range(max(4, 2000 // images)):
        noise = torch.randn(images, dim, generator=generator, dtype=torch.float64)
        roots.append(torch.linalg.svdvals((noise - noise.mean(0)) / (images - 1) ** 0.5).sum())
    return float(torch.stack(roots).mean() / dim / (1 + 1 / images))


@pytest.mark.slow
def test_a_batch_alone_shrinks_the_generator_as_derived() -> None:
    assert scale_expected(16) == pytest.approx(0.60, abs=0.01)
    assert scale_found(BatchMoments()) == pytest.approx(scale_expected(16), abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("refresh_every", [1, 8])
def test_a_queue_cures_it(refresh_every: int) -> None:
    assert scale_expected(1024) == pytest.approx(0.995, abs=0.002)
    assert scale_found(QueueMoments(1024), refresh_every) == pytest.approx(scale_expected(1024), abs=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("refresh_every", [1, 8])
def test_an_average_cures_it(refresh_every: int) -> None:
    assert scale_found(EMAMoments(0.98), refresh_every) == pytest.approx(1, abs=0.03)
