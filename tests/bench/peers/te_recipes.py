"""The FP8 recipes with which TransformerEngine is timed here and graded by tests/gpu/grade_te.py."""
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, Format


def recipe_of(scaling):
    """FP8 attention, E4M3 forward and E5M2 for gradients; delayed: with the largest values of the call before, current: of this one."""
    if scaling == "delayed":
        return DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=1, amax_compute_algo="most_recent", fp8_dpa=True)
    return Float8CurrentScaling(fp8_format=Format.HYBRID, fp8_dpa=True)
