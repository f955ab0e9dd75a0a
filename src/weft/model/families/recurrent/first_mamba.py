"""The first Mamba in a config: its layers, which have nothing else, and their sizes."""

from weft.model.fields import Fields
from weft.model.recurrence import Mamba1Spec
from weft.model.spec import MAX_CONV_WIDTH, LayerSpec

_MAX_WIDTH = 2**24
_MAX_STATE_SIZE = 2**26  # as for Mamba-2
_MAX_WEIGHTS = 2**30  # of each matrix between the convolution and the states
_STEP_EPS = "mixer_rms_eps"
FIRST_MAMBA_KEYS = frozenset({"time_step_rank", _STEP_EPS})


def first_mamba_alone(fields: Fields, num_layers: int) -> tuple[LayerSpec, ...]:
    """Returns the layers of a model that has the first Mamba in all of them, and nothing else.

    A config with `mixer_rms_eps` is of Falcon's, which norms time steps, B and C.
    """
    hidden = fields.integer("hidden_size", high=_MAX_WIDTH)
    rank: int | None = None
    if fields.values.get("time_step_rank") != "auto":
        rank = fields.integer("time_step_rank", high=_MAX_WIDTH)
    inner = hidden * fields.integer("mamba_expand", high=2**10)
    mamba = Mamba1Spec(
        inner_size=fields.integer_or("intermediate_size", inner, high=_MAX_WIDTH),
        state_dim=fields.integer("mamba_d_state", high=2**16),
        step_rank=-(-hidden // 16) if rank is None else rank,
        conv_width=fields.integer("mamba_d_conv", low=2, high=MAX_CONV_WIDTH),
        has_norms=fields.has(_STEP_EPS),
        step_eps=fields.number_or(_STEP_EPS, 0.0),
        has_conv_bias=fields.flag_or("mamba_conv_bias", True),
        has_bias=fields.flag_or("mamba_proj_bias", False),
    )
    if 2 * mamba.inner_size > _MAX_WIDTH or mamba.state_size > _MAX_STATE_SIZE:
        limit = f"one with which a layer keeps at most {_MAX_STATE_SIZE} numbers a sequence"
        fields.refuse("mamba_d_state", limit)
    if mamba.made_size * mamba.inner_size > _MAX_WEIGHTS:
        fields.refuse("time_step_rank", f"one with at most {_MAX_WEIGHTS} weights of time steps")
    if fields.text("hidden_act") not in ("silu", "swish"):
        fields.refuse("hidden_act", "silu, which Mamba layers are computed with")
    return (LayerSpec(recurrence=mamba, has_mlp=False),) * num_layers
