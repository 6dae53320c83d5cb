"""The suite `tiny` in seconds: fewer digits, clients and rounds, in its small embeddings. Scoring takes most of it."""

from dataclasses import replace

from fedgen.benchmark.suite import DATA, DIGITS_NETWORK, SUITES, TINY
from fedgen.data import Digits, Examples
from fedgen.experiments.engine.trainings import component


class ThreeDigits(Digits):
    """The zeros, ones and twos: three clients."""

    def read(self, split):
        known = super().read(split)
        few = known.labels < 3
        return Examples(known.inputs[few], known.labels[few], "digits/train", known.classes[:3])


FEW = replace(
    DATA["digits"],
    recipe=component(f"{__name__}.ThreeDigits"),
    num_images=100,
    embeddings=(DIGITS_NETWORK, "pixels"),
)
BUDGET = replace(TINY.cells[0].budget, rounds=8, cohort=2)
SHORT = replace(TINY, questions={"": tuple(replace(cell, budget=BUDGET) for cell in TINY.cells)})


def shorten(patch, seeds=TINY.seeds):
    """The suite `tiny` is short from now on, and scored in one embedding, FLD by densities that are hardly fitted."""
    patch.setattr("fedgen.scores.manifold.feature_likelihood.PASSES", 2)
    patch.setitem(DATA, "digits", replace(FEW, embeddings=("pixels",)))
    patch.setitem(SUITES, "tiny", replace(SHORT, seeds=seeds))
