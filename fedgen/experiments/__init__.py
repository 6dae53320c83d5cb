"""Experiments by name: each one command that prints a table and leaves its numbers and a figure in a folder.

Rooms, of which each imports only those above it:

    engine         steps that are kept, quick runs and settings, trainings, arms over paired seeds, comparisons
    theory         closed forms, toys, error and speed of matrix roots
    ranking        how avg and all order the same generators, beside IID controls
    paired         the same recipe with and without a change, over paired seeds
    participation  clients that train and clients that never do

A new experiment is a function in one of them, with options that are a `Choice` and numbers that are steps of a `Study`,
and a line below; docs/architecture.md names what to start from.
"""

_SHOWN = {  # module -> experiment -> what it shows
    "theory.gaussian_toy": {
        "gaussian-toy": "two Gaussian clients: minima of FID-avg and FID-all",
        "gaussian-loglik": "the same by log-likelihood: one curve for avg and all",
    },
    "theory.gaussian_fids": {
        "barycentre": "FID-avg as the distance to a Wasserstein barycentre",
        "minibatch-bias": "FID of minibatches as a loss shrinks a generator",
    },
    "theory.fastfid": {
        "fastfid-speed": "time of FID as a loss and of its gradient",
        "fastfid-error": "float32 error of the trace of a matrix root",
    },
    "ranking.trained_checkpoints": {
        "perfect-generator": "checkpoints against generators perfect for one class",
        "wgan-gp-checkpoints": "every checkpoint of six federated WGAN-GPs",
    },
    "ranking.class_generators": {
        "class-generators": "classes, mixtures, neighbourhoods as 100 generators",
    },
    "ranking.rising_variance": {
        "variance-limited": "low-variance clients, generators of rising variance",
        "intra-client-variance": "the same over clients of 5 to 50 neighbours",
        "manifold-metrics": "the same by precision, recall, density, coverage",
    },
    "ranking.truncation": {
        "truncation": "a StyleGAN2 at rising truncation",
    },
    "ranking.critic_distance": {
        "wasserstein": "1-Wasserstein distance by critics, in avg and all",
    },
    "ranking.sample_size": {
        "sample-size": "how few images separate FID-avg from FID-all",
    },
    "ranking.paper_table": {
        "paper-table": "inverted pairs of the published CIFAR-100 table",
    },
    "paired.communication_interval": {
        "communication-interval": "scores by the number of local iterations",
    },
    "paired.mmd2_finetune": {
        "mmd2-finetune": "a StyleGAN2 fine-tuned by MMD^2 on twelve clients",
    },
    "paired.privacy": {
        "private-scores": "scores from summed messages: size, rounding, noise",
        "privacy-cost": "what client-level clipping and noise cost",
    },
    "paired.distributed_fid_loss": {
        "distributed-fid-loss": "FID and KID as losses in both aggregates",
    },
    "paired.fid_finetune": {
        "fid-finetune": "trained generators fine-tuned on FID alone",
    },
    "paired.fid_loss_gans": {
        "digits-fid-loss": "a federated WGAN-GP with and without a FID loss",
        "fid-loss-gans": "SNGAN, DCGAN, SAGAN with and without a FID loss",
    },
    "paired.fid_loss_artifacts": {
        "fid-loss-artifacts": "what FID hides in generators trained on it",
    },
    "paired.cost_curves": {
        "compressed-updates": "scores by the bytes sent: QSGD, top-k, signs, low rank",
        "asynchronous-rounds": "FedAvg and FedBuff: scores by simulated seconds",
        "flow-choices": "a federated flow of clothes, one change at a time",
    },
    "participation.participation_gap": {
        "participation-gap": "a DDPM on unseen clients, under four partitions",
        "client-percentiles": "percentiles over seen and unseen clients",
        "classifier-control": "a classifier under the same four partitions",
        "text-gap": "a character model of 66 books, a third unseen",
    },
    "participation.gaps_by_setting": {
        "number-of-clients": "what unseen clients gain from more clients",
        "client-diversity": "as many images, from few clients or from many",
        "local-epochs": "gaps by the length of a client's turn",
        "learning-rates": "client and server rates, and gaps at the best",
        "server-optimizers": "seven server optimizers and client algorithms",
    },
}
# name -> (module:function, what it shows); imported when run
EXPERIMENTS = {
    name: (f"fedgen.experiments.{module}:{name.replace('-', '_')}", about)
    for module, shown in _SHOWN.items()
    for name, about in shown.items()
}

__all__ = ["EXPERIMENTS"]
