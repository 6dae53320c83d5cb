"""A StyleGAN2 fine-tuned against its server's images and by MMD^2 towards clients who keep theirs, in three forms.

Section 8.3 of "On the (Distributed) Evaluation of Generative Models" (arXiv 2310.11714): twelve clients around centres
of a pretrained network that share an attribute; loss = GAN loss against the images that the network was trained on + 5
MMD^2 with KID's kernel. Each form is scored where it was optimised and in an embedding that nothing was trained on,
against images of the clients that nobody trained on, beside the same game without the second objective.
"""

import json
import shutil
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

import fedgen.data
from fedgen.clients import FederatedDataModule
from fedgen.data import DataSet, Examples
from fedgen.embeddings import FeatureCache, embed, load_embedding
from fedgen.evaluation.marks import SAME
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, draw_images, draw_panels
from fedgen.experiments.engine.features import CACHE
from fedgen.experiments.engine.paired_seeds import by_chance
from fedgen.experiments.engine.scored_arms import REAL_IMAGES, ScoredArms
from fedgen.experiments.engine.study import FOLDER, Numbers, Study, expectation, folder_name, make_table
from fedgen.experiments.engine.trainings import fingerprints, train_all
from fedgen.experiments.paired import mmd2_arms as mmd2
from fedgen.experiments.ranking.styles import BATCH, TruncatedStyles, read_styles
from fedgen.images import save_png
from fedgen.io.files import in_bytes, read_json
from fedgen.progress import track
from fedgen.seeds import generator

COLUMNS = 14  # latents in the picture of samples
ALIKE = 1e-9  # of KID's gap between avg and all: rounding leaves less
GRID = "mmd2_samples.png"
STYLES = {
    mmd2.CONTROL: {"color": "0.35", "marker": "x"},
    mmd2.EXACT: {"color": "#1f5fa8", "marker": "o"},
    mmd2.LOCAL: {"color": "#3a8a3a", "marker": "s"},
    mmd2.MESSAGE: {"color": "#c4560b", "marker": "^"},
    REAL_IMAGES: REAL,
}
PANELS = (mmd2.KID_AVG, mmd2.KID_ALL, mmd2.FID_SERVER, mmd2.RECALL, mmd2.COVERAGE)


def mmd2_finetune(**options: Any) -> None:
    """Fine-tunes a StyleGAN2 towards twelve clients by distributed MMD^2, in three forms and with weight 0.

    With the kit's own network an hour and a half on one core. The paper's settings are --network ffhq.safetensors
    --server_data FOLDER --centres ... --embedding inception-v3-compat --judge dinov2-vit-b14 --rounds 100 --iterations
    156, and a GPU.
    """
    choice = mmd2.Mmd2Choice(**options)
    styles = read_styles(choice.network, choice.device)
    settings = choice.settings()
    root = choice.output or FOLDER / folder_name("mmd2-finetune", settings)
    runs = mmd2.Mmd2Runs(choice, styles.network.image_shape, root, styles.fingerprint())
    settings |= {"network": styles.fingerprint(), "recipe": fingerprints([runs.recipe])}
    study = Study("mmd2-finetune", root, settings)
    measure(study, runs, styles)
    places = {arm: runs.states(arm, choice.seed) for arm in mmd2.ARMS}
    found = scored(study.numbers["scores"], places, choice)
    if not study.path(GRID).exists():
        draw_samples(runs, study.path(GRID))
    tables: list[Table | str] = [table_of(found, name, choice) for name in (choice.judge, choice.embedding)]
    tables += [traffic_table(study.numbers["traffic"], choice), message_table(study.numbers["messages"])]
    tables += [drift_line(study.numbers["drift"]), *outcomes(found, choice)]
    tables += [f"centres of seed {seed}: {study.numbers['centres'][str(seed)]}" for seed in choice.seeds_of]
    tables.append(f"samples: {study.path(GRID)}")
    study.report(tables, draw_curves(found, choice, study.figure))


def measure(study: Study, runs: mmd2.Mmd2Runs, styles: TruncatedStyles) -> None:
    """Makes clients, trains what is missing, and scores every state and the clients' own images."""
    choice, seeds = runs.choice, {str(seed): seed for seed in runs.choice.seeds_of}
    if not study.missing("drift"):
        return
    public = public_images(choice, styles)
    judge = load_embedding(choice.judge, weights=choice.weights).to(choice.device)
    embedding = load_embedding(choice.embedding).to(choice.device)
    centres = study.each("centres", seeds, lambda seed: find_centres(choice, styles, public, seed), "seeds")
    for name, seed in seeds.items():
        write_clients(choice, styles, centres[name], seed, runs.clients(seed))
    train_all([runs.training(arm, seed) for seed in seeds.values() for arm in mmd2.ARMS], choice.parallel)

    def data_of(seed: int) -> FederatedDataModule:
        return rebuild(runs.training(mmd2.CONTROL, seed).place)[1]

    def scored(seed: int) -> dict[str, Any]:
        scores = mmd2.HeldOutScores(data_of(seed), public, [judge, embedding])
        # the arms of a seed share their start
        states = {_key(arm, shown): path for arm in mmd2.ARMS for shown, path in runs.states(arm, seed).items()}
        made = {name: mmd2.images_of(path, choice.num_images, seed, choice.device) for name, path in states.items()}
        return {"floor": scores.floor} | {state: scores.score(images) for state, images in made.items()}

    found = study.each("scores", seeds, scored, "seeds")
    study.step("floor", lambda: {name: own["floor"] for name, own in found.items()})
    last = {arm: list(runs.states(arm, choice.seed).values())[-1] for arm in mmd2.FORMS}
    study.step("traffic", lambda: {arm: asdict(mmd2.sent(path)) for arm, path in last.items()})
    data, batch = data_of(choice.seed), mmd2.images_of(choice.network, choice.batch, choice.seed, choice.device)
    study.step("messages", lambda: mmd2.message_errors(data, public, batch, embedding))
    study.step("drift", lambda: mmd2.drifts(styles, data, embedding, choice.batch, choice.seed))


def _key(arm: str, shown: int) -> str:
    return f"{arm if shown else mmd2.START}, {shown} images"


def scored(scores: Numbers, places: Mapping[str, Iterable[int]], choice: mmd2.Mmd2Choice) -> ScoredArms:
    """Return the scores of every arm by images shown, the forms beside the control, with the network's own."""
    by_state = {(seed, state): one for seed, own in scores.items() for state, one in own.items()}
    states = {
        arm: {shown: [by_state[str(seed), _key(arm, shown)] for seed in choice.seeds_of] for shown in own}
        for arm, own in {mmd2.START: [0], **places}.items()
    }
    floors = [scores[str(seed)]["floor"] for seed in choice.seeds_of]
    used, beside = dict.fromkeys(mmd2.FORMS, (choice.embedding,)), dict.fromkeys(mmd2.FORMS, (mmd2.CONTROL, None))
    return ScoredArms(
        states, floors, mmd2.TITLES, used, beside, lambda _, embedding, own: SAME if embedding in own else ""
    )


def table_of(found: ScoredArms, embedding: str, choice: mmd2.Mmd2Choice) -> Table:
    lines = [(("clients",), REAL_IMAGES), *(((arm,), arm) for arm in (mmd2.START, *mmd2.ARMS))]
    title = f"{embedding}, {choice.num_images:,} images to held-out ones, mean of {choice.seeds} seed(s)"
    note = "clients: their own training images in a generator's place"
    return found.table(title, embedding, ["generator"], lines, mmd2.CONTROL, [note])


def traffic_table(traffic: Mapping[str, Mapping[str, int]], choice: mmd2.Mmd2Choice) -> Table:
    rows = []
    for arm, found in traffic.items():
        asked = f"{found['questions']:,}" if found["questions"] else f"{choice.rounds} rounds"
        rows.append((arm, in_bytes(found["down"]), in_bytes(found["up"]), asked))
    title = f"sent in a run, {choice.clients} clients together"
    return make_table(title, ("form", "to the clients", "from the clients", "questions"), rows)


def message_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    headings = ("summary", "from the clients", "value off by", "gradient off by", "cosine of gradients")
    lines = [
        (row["summary"], in_bytes(row["up"]), f"{row['value']:.1%}", f"{row['gradient']:.1%}", f"{row['cosine']:.4f}")
        for row in rows
    ]
    return make_table("one message against asking at every step: a batch at the start", headings, lines)


def drift_line(drift: Mapping[str, Sequence[float]]) -> str:
    steps = len(next(iter(drift.values())))
    lines = [f"drift of (b) from (a) after 1 to {steps} local steps of SGD, as a share of the way:"]
    for move, values in drift.items():
        shown = ", ".join(f"{value:.2g}" for value in values)
        lines.append(f"  a first step of {move} of the weights' norm: {shown}")
    return "\n".join(lines)


def outcomes(found: ScoredArms, choice: mmd2.Mmd2Choice) -> list[str]:
    judge, own, lines = choice.judge, choice.embedding, []
    for arm in mmd2.FORMS:
        for where, how in ((judge, "that nothing was trained on"), (own, "trained on")):
            lines.append(found.verdict(f"{arm}: KID-avg in {where}, {how}, falls", arm, where, mmd2.KID_AVG, "less"))
        for score in (mmd2.RECALL, mmd2.COVERAGE):
            text = f"{arm}: {score} of the clients in {judge} does not fall"
            lines.append(found.verdict(text, arm, judge, score, "not less"))
        lines.append(_collapse(found, arm, judge))
    states = [state for arm in mmd2.ARMS for state in found.states[arm].values()]
    gaps = [
        [state[k][judge][mmd2.KID_AVG] - state[k][judge][mmd2.KID_ALL] for state in states] for k in range(choice.seeds)
    ]
    spread = max((max(each) - min(each)) / abs(statistics.mean(each)) for each in gaps)
    text = f"KID-avg - KID-all is one number for all generators of a seed, to {spread:.1e} of it"
    lines.append(expectation(text, spread < ALIKE))
    return lines + ([by_chance(4 * len(mmd2.FORMS))] if choice.seeds > 1 else [])


def _collapse(found: ScoredArms, arm: str, judge: str) -> str:
    """Say whether FID-all to the server's images stays nearer to the control's than to the clients' own images'."""
    own, control, gone = (found.values(name, judge, mmd2.FID_SERVER) for name in (arm, mmd2.CONTROL, REAL_IMAGES))
    ways = [(value - start) / (end - start) for value, start, end in zip(own, control, gone)]
    text = f"{arm}: FID-all to the server's images in {judge} goes {statistics.mean(ways):.1%} of the way from"
    text += f" {mmd2.CONTROL} to the clients' own images (at most {max(ways):.1%})"
    return expectation(text, max(ways) < 0.5)


def draw_samples(runs: mmd2.Mmd2Runs, path: Path) -> Path:
    """Images of the clients, and of the same latents before and after each arm, of the first repetition."""
    choice, seed = runs.choice, runs.choice.seed
    data = rebuild(runs.training(mmd2.CONTROL, seed).place)[1]
    chosen = [int(client.train[k]) for k in range(COLUMNS) for client in data.clients if k < len(client.train)]
    rows = {"clients": data.examples.inputs[chosen[:COLUMNS]]}
    rows[mmd2.START] = mmd2.images_of(choice.network, COLUMNS, seed, choice.device)
    for arm in mmd2.ARMS:
        rows[arm] = mmd2.images_of(list(runs.states(arm, seed).values())[-1], COLUMNS, seed, choice.device)
    return draw_images({"one client image of each client in turn; then one latent a column": rows}, path)


def draw_curves(found: ScoredArms, choice: mmd2.Mmd2Choice, path: Path) -> Path:
    """A row an embedding, a panel a score, over thousands of images shown: each seed, and their mean."""

    def panel(embedding: str, score: str) -> ArmPanel:
        real = found.mean(REAL_IMAGES, embedding, score)
        note = f"\nthe clients' training images: {real:.2f}" if score == mmd2.COVERAGE else ""
        used = "MMD² minimised in it" if embedding == choice.embedding else "nothing trained on it"
        return found.panel(
            mmd2.ARMS,
            embedding,
            score,
            unit=1000,
            title=mmd2.TITLES[score] + note,
            label=f"{embedding}\n{used}" if score == PANELS[0] else "",
            # of these two the clients' images lie far above all others, whose lines they would leave flat
            levels={} if score in (mmd2.COVERAGE, mmd2.FID_SERVER) else {REAL_IMAGES: [real]},
        )

    panels = [[panel(embedding, score) for score in PANELS] for embedding in (choice.judge, choice.embedding)]
    about = f"{choice.network.stem} towards {choice.clients} clients; scores to their held-out images"
    title = f"{about}; {REAL_IMAGES}: the clients' training images"
    return draw_panels(panels, STYLES, path, title, "thousands of images")


SEARCHED = 20_000  # latents, at most, among which centres are looked for
PUBLIC = 10_000  # of the server's images, at most, that are compared with
NEIGHBOURS = 5  # a centre's nearest images, which must all have the attribute
STAMP = ".made"  # in the clients' folder: what they were made of


def public_images(choice: mmd2.Mmd2Choice, styles: TruncatedStyles) -> Examples:
    """Images that the server has, 10,000 at most: what centres show, FID and landmarks are found by them."""
    described = choice.server(styles.network.image_shape)
    data: DataSet = getattr(fedgen.data, described["class_path"].rpartition(".")[2])(**described["init_args"])
    server = data.load("train")
    return server.subset(torch.randperm(len(server), generator=generator(choice.seed, "server's images"))[:PUBLIC])


def find_centres(choice: mmd2.Mmd2Choice, styles: TruncatedStyles, known: Examples, seed: int) -> list[int]:
    """Numbers of latents whose images show the attribute, as their nearest server's images do: the first ones."""
    if choice.centres is not None:
        return list(choice.centres)
    if choice.attribute not in known.classes:
        names = ", ".join(known.classes) or "none"
        raise ValueError(
            f"attribute={choice.attribute!r} is no class of {known.name}, which has {names}; or give --centres"
        )
    embedding = load_embedding(choice.embedding).to(choice.device)
    text = f"embedding {known.name} with {embedding.name}"
    features = embed(embedding, known.inputs, description=text, cache=FeatureCache(CACHE))
    has = known.labels == known.classes.index(choice.attribute)
    found: list[int] = []
    for start in track(range(0, SEARCHED, BATCH), f"looking for {choice.attribute}", SEARCHED // BATCH, "batches"):
        numbers = range(start, start + BATCH)
        images = styles.make(styles.mean, 1.0, torch.cat([latent(styles, seed, k) for k in numbers]), still())
        near = torch.cdist(embed(embedding, images).double(), features.double()).topk(NEIGHBOURS, largest=False).indices
        shows = has[near].all(dim=1)
        found += [number for number, yes in zip(numbers, shows.tolist()) if yes]
        if len(found) >= choice.clients:
            return found[: choice.clients]
    raise ValueError(
        f"of {SEARCHED:,} images of {choice.network} {len(found)} show {choice.attribute!r}, and {choice.clients} are"
        " needed; choose another attribute, fewer clients, or give --centres"
    )


def latent(styles: TruncatedStyles, seed: int, number: int) -> Tensor:
    """The latent [1, latent_dim] of a centre."""
    return styles.latents(1, generator(seed, "centre", number))


def still() -> torch.Generator:
    """Draws of the noise of images that are looked at for what they show."""
    return generator(0, "noise of centres")


def write_clients(choice: mmd2.Mmd2Choice, styles: TruncatedStyles, centres: list[int], seed: int, root: Path) -> Path:
    """A folder of PNGs for every client below a root, unless it is there; made anew if it is of something else."""
    made_of = {
        "network": styles.fingerprint(),
        "centres": centres,
        "images": choice.client_images,
        "truncation": choice.client_truncation,
        "seed": seed,
    }
    stamp = root / STAMP
    if stamp.is_file() and read_json(stamp) == made_of:
        return root
    shutil.rmtree(root, ignore_errors=True)
    for client, centre in enumerate(track(centres, f"making clients of seed {seed}", len(centres), "clients")):
        folder = root / f"client-{client:02d}"
        folder.mkdir(parents=True)
        for number, image in enumerate(_images(choice, styles, centre, seed)):
            save_png(folder / f"{number:05d}.png", image)
    stamp.write_text(json.dumps(made_of))  # last: what was cut short has none
    return root


def _images(choice: mmd2.Mmd2Choice, styles: TruncatedStyles, centre: int, seed: int) -> Iterator[Tensor]:
    middle = styles.styles(latent(styles, seed, centre))[0]
    for batch in styles.batches(
        middle, choice.client_truncation, choice.client_images, seed, "images of the client around", centre
    ):
        yield from batch
