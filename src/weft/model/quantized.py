"""quantization_config: which checkpoints of rounded weights are read, and the refusal of all others by name.

Read: compressed-tensors with int8 weights, symmetric, one scale for each output row. Such a matrix lies
in the file as I8 beside a tensor `..._scale` of shape [rows, 1].
"""

from weft.core.errors import ConfigError
from weft.model.fields import Fields, shown

SCALE_SUFFIX = "_scale"  # after the name of the matrix
_METHOD = "compressed-tensors"
_FORMATS = ("int-quantized", "naive-quantized")


def has_int8_weights(fields: Fields) -> bool:
    """Whether linear layers may be stored as int8; a `ConfigError` names what cannot be read."""
    config = fields.object("quantization_config")
    if config is None or not config.values:
        return False
    _need(config, "quant_method", _METHOD)
    _need(config, "format", *_FORMATS)
    _need(config, "kv_cache_scheme", None)
    _need(config, "sparsity_config", None, {})
    _need(config, "transform_config", None, {})
    groups = config.object("config_groups")
    if groups is None or not groups.values:
        config.refuse("config_groups", "an object of groups")
    for name in groups.values:
        group = groups.object(name)
        if group is None:
            groups.refuse(name, "an object")
        _need(group, "output_activations", None)
        _need(group, "format", None, *_FORMATS)
        _check_numbers(group, "weights", strategy="channel", is_dynamic=False)
        if group.has("input_activations"):
            _check_numbers(group, "input_activations", strategy="token", is_dynamic=True)
    return True


def _check_numbers(group: Fields, key: str, *, strategy: str, is_dynamic: bool) -> None:
    numbers = group.object(key)
    if numbers is None:
        group.refuse(key, "an object")
    _need(numbers, "num_bits", 8)
    _need(numbers, "type", "int")
    _need(numbers, "symmetric", True)
    _need(numbers, "strategy", strategy)
    _need(numbers, "dynamic", is_dynamic, *([] if is_dynamic else [None]))
    _need(numbers, "group_size", None)
    _need(numbers, "actorder", None)
    _need(numbers, "block_structure", None)


def _need(fields: Fields, key: str, *allowed: object) -> None:
    value = fields.values.get(key)
    if not any(value is one or (value == one and type(value) is type(one)) for one in allowed):
        offer = " or ".join("nothing" if one is None else shown(one) for one in allowed)
        raise ConfigError(f"{fields.where}: {key} is {shown(value)}; this runner reads {offer}")
