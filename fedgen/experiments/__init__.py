"""Experiments by name: each one command that prints a table and leaves its numbers and a figure in a folder.

Rooms, of which each imports only those above it:

    engine         steps that are kept, quick runs and settings, trainings, arms over paired seeds, comparisons
    theory         closed forms, toys, error and speed of matrix roots
    ranking        how avg and all order the same generators, beside IID controls
    paired         the same recipe with and without a change, over paired seeds
    participation  clients that train and clients that never do

A new experiment is a function in one of them and a line below. One on clients that never train is a list of arms, each
a name and the options of `fedgen fit` that differ from the recipe (`participation/gaps_by_setting.py`). One that trains
in another way declares arms too, and has them by `engine.trainings.trainings_of`. One that compares avg and all over
generators is a `RankingStudy` of what these score over the clients and over IID dealings of their images
(`ranking/class_generators.py`). Numbers are the steps of a `Study`, so that it goes on where it was stopped; options
are a `Choice`, which knows those of a quick run and what the numbers depend on.

Arms over paired seeds share options (`ArmsChoice`), scores beside a control with table and curves (`ScoredArms`, or
`GapScores` on clients that never train), figures (`arm_panels`) and verdicts (`paired_seeds.verdict_on`).
`paired/fid_finetune.py` is one whole.
"""

# name -> (module:function, what it shows); imported when run
EXPERIMENTS = {
    "gaussian-toy": (
        "fedgen.experiments.theory.gaussian_toy:gaussian_toy",
        "two Gaussian clients, 21 generators: FID-avg and FID-all have different minima, KID's gap is constant",
    ),
    "gaussian-loglik": (
        "fedgen.experiments.theory.gaussian_toy:gaussian_loglik",
        "the same clients: log-likelihood's avg and all are one curve, by variance and by mean",
    ),
    "barycentre": (
        "fedgen.experiments.theory.fid_barycentre:barycentre",
        "FID-avg as the distance to a Wasserstein barycentre: exact for commuting covariances, off for others",
    ),
    "perfect-generator": (
        "fedgen.experiments.ranking.perfect_generator:perfect_generator",
        "checkpoints of federated WGAN-GPs and DDPMs against generators that are perfect for one class",
    ),
    "wgan-gp-checkpoints": (
        "fedgen.experiments.ranking.wgan_gp_checkpoints:wgan_gp_checkpoints",
        "every checkpoint of several federated WGAN-GPs: KID's gap is flat, FID's is not",
    ),
    "communication-interval": (
        "fedgen.experiments.paired.communication_interval:communication_interval",
        "quality of a WGAN-GP and a DDPM by communication interval, beside local-only and centralised training",
    ),
    "class-generators": (
        "fedgen.experiments.ranking.class_generators:class_generators",
        "classes, mixtures and neighbourhoods as 100 generators over a federation of other classes",
    ),
    "variance-limited": (
        "fedgen.experiments.ranking.rising_variance:variance_limited",
        "clients of little variance, generators of more and more: FID's avg and all part, KID's do not",
    ),
    "intra-client-variance": (
        "fedgen.experiments.ranking.rising_variance:intra_client_variance",
        "the same over clients of 5 to 50 neighbours",
    ),
    "truncation": (
        "fedgen.experiments.ranking.truncation:truncation",
        "a StyleGAN2 at rising truncation over clients of little, each around a style of its own",
    ),
    "mmd2-finetune": (
        "fedgen.experiments.paired.mmd2_finetune:mmd2_finetune",
        "a StyleGAN2 fine-tuned by MMD^2 to twelve clients who keep their images, in three forms",
    ),
    "manifold-metrics": (
        "fedgen.experiments.ranking.manifold_metrics:manifold_metrics",
        "precision, recall, density and coverage in both aggregates over clients of little variance",
    ),
    "wasserstein": (
        "fedgen.experiments.ranking.critic_distance:wasserstein",
        "1-Wasserstein distance by critics, in both aggregates, over the class generators",
    ),
    "sample-size": (
        "fedgen.experiments.ranking.sample_size:sample_size",
        "the gap that few images put between FID's avg and all over IID clients, and what removes it",
    ),
    "paper-table": (
        "fedgen.experiments.ranking.paper_table:paper_table",
        "the published CIFAR-100 table again: its inverted pairs, and where KID's come from",
    ),
    "private-scores": (
        "fedgen.experiments.paired.private_scores:private_scores",
        "FID-all and KID-all from summed messages: their size, and what fixed point and noise cost",
    ),
    "privacy-cost": (
        "fedgen.experiments.paired.privacy_cost:privacy_cost",
        "what clipping and noise for whole clients cost a federated generator, beside the epsilon that they buy",
    ),
    "minibatch-bias": (
        "fedgen.experiments.theory.minibatch_bias:minibatch_bias",
        "FID of a minibatch as a loss shrinks a generator's covariance; a queue, an EMA and MMD^2 do not",
    ),
    "digits-fid-loss": (
        "fedgen.experiments.paired.digits_fid_loss:digits_fid_loss",
        "federated WGAN-GP on digits with and without a FID loss, paired seeds, a second embedding, held-out images",
    ),
    "fastfid-speed": (
        "fedgen.experiments.theory.fastfid:fastfid_speed",
        "time of FID as a loss, value and gradient, beside the FastFID paper's Algorithm 1, torchmetrics and scipy",
    ),
    "fastfid-error": (
        "fedgen.experiments.theory.fastfid:fastfid_error",
        "error of a trace of a matrix root in float32 by scipy, Algorithm 1 and ours, beside the paper's table",
    ),
    "distributed-fid-loss": (
        "fedgen.experiments.paired.distributed_fid_loss:distributed_fid_loss",
        "the optimum that FID and KID pull a generator to in both aggregates: a toy from messages, a GAN on digits",
    ),
    "fid-finetune": (
        "fedgen.experiments.paired.fid_finetune:fid_finetune",
        "trained generators fine-tuned on FID alone: all layers, the first, two embeddings; tracked images over steps",
    ),
    "fid-loss-gans": (
        "fedgen.experiments.paired.fid_loss_gans:fid_loss_gans",
        "SNGAN, DCGAN and SAGAN with and without FID as a loss in three forms: paired seeds, a second embedding",
    ),
    "fid-loss-artifacts": (
        "fedgen.experiments.paired.fid_loss_artifacts:fid_loss_artifacts",
        "a GAN whose critic is removed and a Glow, with FID as a loss: what samples show and the score does not",
    ),
    "participation-gap": (
        "fedgen.experiments.participation.participation_gap:participation_gap",
        "a DDPM on clients that never train, under natural, semantic, label and random partitions of the same images",
    ),
    "client-percentiles": (
        "fedgen.experiments.participation.participation_gap:client_percentiles",
        "the same runs: percentiles over seen and unseen clients",
    ),
    "classifier-control": (
        "fedgen.experiments.participation.natural_gaps:classifier_control",
        "a classifier under the same partitions, beside the signs and orderings of the published tables",
    ),
    "text-gap": (
        "fedgen.experiments.participation.natural_gaps:text_gap",
        "a character model on the 66 books of the King James Version, a third of which it never sees",
    ),
    "number-of-clients": (
        "fedgen.experiments.participation.gaps_by_setting:number_of_clients",
        "more clients that train: what clients that never do gain",
    ),
    "client-diversity": (
        "fedgen.experiments.participation.gaps_by_setting:client_diversity",
        "as many images, of few clients or of many",
    ),
    "local-epochs": (
        "fedgen.experiments.participation.gaps_by_setting:local_epochs",
        "gaps by the length of a turn, at equal local iterations",
    ),
    "learning-rates": (
        "fedgen.experiments.participation.gaps_by_setting:learning_rates",
        "client and server rates, chosen by the sum of seen and unseen clients' scores; gaps at the best",
    ),
    "server-optimizers": (
        "fedgen.experiments.paired.cost_curves:server_optimizers",
        "FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi, FedProx, SCAFFOLD: rounds and bytes to a KID, and gaps",
    ),
    "compressed-updates": (
        "fedgen.experiments.paired.cost_curves:compressed_updates",
        "whole updates, QSGD, top-k, signs and low ranks: scores by the bytes that clients have sent",
    ),
    "asynchronous-rounds": (
        "fedgen.experiments.paired.cost_curves:asynchronous_rounds",
        "FedAvg and FedBuff over slow and fast clients: scores by the seconds of a simulated clock",
    ),
    "flow-choices": (
        "fedgen.experiments.paired.flow_choices:flow_choices",
        "a federated flow of clothes: interval, moving average, labels, coupling and more, one changed at a time",
    ),
}

__all__ = ["EXPERIMENTS"]
