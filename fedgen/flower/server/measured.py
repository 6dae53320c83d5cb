"""The scores of a recipe that a deployment measures: those that clients who keep their images can answer for."""

import copy
from collections.abc import Mapping
from typing import Any

from fedgen.evaluation.score_choice import choose
from fedgen.flower.app.recipe import EVALUATION


def without_unmeasured(recipe: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recipe with an evaluation of what a deployment measures, or none, and what it does not measure.

    Args:
        recipe: as for `fedgen fit`.

    Returns:
        The recipe, and the names of the scores that are left out.

    Raises:
        ValueError: for an unknown score.
    """
    found, left = copy.deepcopy(dict(recipe)), []
    trainer = found.get("trainer") or {}
    for callback in list(trainer.get("callbacks") or []):
        own = callback.get("init_args") or {}
        if not str(callback.get("class_path")).endswith(EVALUATION) or "scores" not in own:
            continue
        asked = [own["scores"]] if isinstance(own["scores"], (str, Mapping)) else list(own["scores"])
        chosen = {place: choose(score) for place, score in enumerate(asked)}
        left += [choice.name for choice in chosen.values() if not choice.definition.is_deployed]
        own["scores"] = [asked[place] for place, choice in chosen.items() if choice.definition.is_deployed]
        if not own["scores"] and not own.get("presets"):
            trainer["callbacks"].remove(callback)
    return found, left
