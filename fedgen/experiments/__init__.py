"""Experiments by name: each one command that prints a table and leaves its numbers and a figure in a folder."""

# name -> (module:function, what it shows); imported when run
EXPERIMENTS = {
    "minibatch-bias": (
        "fedgen.experiments.minibatch_bias:minibatch_bias",
        "FID of a minibatch as a loss shrinks a generator's covariance; a queue, an EMA and MMD^2 do not",
    ),
    "digits-fid-loss": (
        "fedgen.experiments.digits_fid_loss:digits_fid_loss",
        "federated WGAN-GP on digits with and without a FID loss, paired seeds, a second embedding, held-out images",
    ),
}

__all__ = ["EXPERIMENTS"]
