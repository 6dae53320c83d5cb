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
        "gaussian-toy": "21 generators, two Gaussian clients: FID-avg and FID-all differ in minima, KID's gap is flat",
        "gaussian-loglik": "the same clients: log-likelihood's avg and all are one curve, by variance and by mean",
    },
    "theory.gaussian_fids": {
        "barycentre": "FID-avg as the distance to a Wasserstein barycentre: exact for commuting covariances alone",
        "minibatch-bias": "FID of a minibatch as a loss shrinks a generator; a queue, an EMA and MMD^2 do not",
    },
    "theory.fastfid": {
        "fastfid-speed": "time of FID as a loss and of its gradient, beside Algorithm 1, torchmetrics and scipy",
        "fastfid-error": "error of a matrix root's trace in float32 by scipy, Algorithm 1 and ours, beside the paper's",
    },
    "ranking.trained_checkpoints": {
        "perfect-generator": "checkpoints of federated GANs and DDPMs against generators that are perfect for a class",
        "wgan-gp-checkpoints": "every checkpoint of several federated WGAN-GPs: KID's gap is flat, FID's is not",
    },
    "ranking.class_generators": {
        "class-generators": "classes, mixtures and neighbourhoods as 100 generators over a federation of other classes",
    },
    "ranking.rising_variance": {
        "variance-limited": "clients of little variance, generators of ever more: FID's avg and all part, not KID's",
        "intra-client-variance": "the same over clients of 5 to 50 neighbours",
        "manifold-metrics": "precision, recall, density, coverage in both aggregates over clients of little variance",
    },
    "ranking.truncation": {
        "truncation": "a StyleGAN2 at rising truncation over clients of little, each around a style of its own",
    },
    "ranking.critic_distance": {
        "wasserstein": "1-Wasserstein distance by critics, in both aggregates, over the class generators",
    },
    "ranking.sample_size": {
        "sample-size": "the gap that few images put between FID's avg and all over IID clients, and what removes it",
    },
    "ranking.paper_table": {
        "paper-table": "the published CIFAR-100 table again: its inverted pairs, and where KID's come from",
    },
    "paired.communication_interval": {
        "communication-interval": "quality by communication interval, beside local-only and centralised training",
    },
    "paired.mmd2_finetune": {
        "mmd2-finetune": "a StyleGAN2 fine-tuned by MMD^2 to twelve clients who keep their images, in three forms",
    },
    "paired.privacy": {
        "private-scores": "FID-all and KID-all from summed messages: their size, the cost of fixed point and noise",
        "privacy-cost": "what clipping and noise for whole clients cost a federated generator, beside the epsilon",
    },
    "paired.distributed_fid_loss": {
        "distributed-fid-loss": "the optimum of FID and KID in both aggregates: a toy from messages, a GAN of digits",
    },
    "paired.fid_finetune": {
        "fid-finetune": "trained generators fine-tuned on FID alone: all layers, the first, two embeddings",
    },
    "paired.fid_loss_gans": {
        "digits-fid-loss": "a federated WGAN-GP with and without a FID loss: paired seeds, a second embedding",
        "fid-loss-gans": "SNGAN, DCGAN and SAGAN with and without FID as a loss in three forms, by a second embedding",
    },
    "paired.fid_loss_artifacts": {
        "fid-loss-artifacts": "a GAN whose critic is removed and a Glow, with FID as a loss: what the score hides",
    },
    "paired.cost_curves": {
        "compressed-updates": "whole updates, QSGD, top-k, signs and low ranks: scores by the bytes that were sent",
        "asynchronous-rounds": "FedAvg and FedBuff over slow and fast clients: scores by simulated seconds",
        "flow-choices": "a federated flow of clothes: interval, moving average, labels and more, one changed at a time",
    },
    "participation.participation_gap": {
        "participation-gap": "a DDPM on clients that never train, under four partitions of the same images",
        "client-percentiles": "the same runs: percentiles over seen and unseen clients",
        "classifier-control": "a classifier under the same partitions, beside the published signs and orderings",
        "text-gap": "a character model on the 66 books of the King James Version, a third of which it never sees",
    },
    "participation.gaps_by_setting": {
        "number-of-clients": "more clients that train: what clients that never do gain",
        "client-diversity": "as many images, of few clients or of many",
        "local-epochs": "gaps by the length of a turn, at equal local iterations",
        "learning-rates": "client and server rates, chosen by seen and unseen clients' scores; gaps at the best",
        "server-optimizers": "seven server optimizers and client algorithms: rounds and bytes to a KID, and gaps",
    },
}
# name -> (module:function, what it shows); imported when run
EXPERIMENTS = {
    name: (f"fedgen.experiments.{module}:{name.replace('-', '_')}", about)
    for module, shown in _SHOWN.items()
    for name, about in shown.items()
}

__all__ = ["EXPERIMENTS"]
