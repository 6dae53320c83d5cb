# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Reading scores: avg, all, floor, error
#
# What avg, all, the floor and the error of a score mean, shown with points in two dimensions.

# %%
import matplotlib.pyplot as plt
import torch

from fedgen.scores import FrechetReference, KernelReference

draws = torch.Generator().manual_seed(0)


def gaussian(mean, variance, count=20_000):
    """Points [count, 2] of N((mean, 0), diag(variance, 1))."""
    points = torch.randn(count, 2, generator=draws, dtype=torch.float64)
    return points * torch.tensor([variance**0.5, 1.0]) + torch.tensor([mean, 0.0])


# %% [markdown]
# Two clients, left and right; a reference holds their features.

# %%
clients = [gaussian(-1.0, 1.0), gaussian(1.0, 1.0)]
fid = FrechetReference.from_features(clients)
kid = KernelReference.from_features(clients)

variances = [0.2, 0.6, 1.0, 1.4, 1.8, 2.0, 2.4, 3.0, 4.0]
scores = {"fid": [], "kid": []}
for variance in variances:
    generated = gaussian(0.0, variance)
    scores["fid"].append(fid.score(generated))
    scores["kid"].append(kid.score(generated))

figure, axes = plt.subplots(1, 2, figsize=(8, 3))
for axis, (name, found) in zip(axes, scores.items()):
    for aggregate, colour in (("avg", "#c8501e"), ("all", "#1f5aa6")):
        axis.plot(
            variances,
            [score.values[aggregate] for score in found],
            "o-",
            color=colour,
            label=f"{name}-{aggregate}",
        )
    axis.set_xlabel("variance of the generator")
    axis.legend()

# %% [markdown]
# FID-avg is smallest at variance 1, that of one client, and FID-all at 2, that of both together. KID's curves differ by a constant, so
# they rank alike.

# %%
for name, found in scores.items():
    gaps = [score.values["avg"] - score.values["all"] for score in found]
    print(f"{name}: avg - all lies between {min(gaps):.4f} and {max(gaps):.4f}")

# %% [markdown]
# ## Errors
#
# A score's standard error comes from the finite number of images. A difference below two standard errors may be chance.

# %%
for count in (100, 1_000, 10_000):
    score = fid.score(gaussian(0.0, 2.0, count), errors=True)
    print(
        f"{count:6} images: FID-all {score.values['all']:.4f} ± {score.errors['all']:.4f}"
    )

# %% [markdown]
# A perfect generator does not score 0, because FID of few images is too large. The **floor** is the score of other real images of the
# same clients.

# %%
real = torch.cat([gaussian(-1.0, 1.0, 500), gaussian(1.0, 1.0, 500)])
print(f"floor of 1,000 real points: FID-all {fid.score(real).values['all']:.4f}")
