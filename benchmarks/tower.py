"""Times a vision tower of the shape of Qwen3-VL 2B's, with random weights, beside the core's product rate.

Processor time of one thread is counted, so that other work on the machine does not matter much.
"""

import argparse
import time

import numpy as np

from weft.compute.native import measure_roofline, usable_paths
from weft.compute.native.tower import NativeTower
from weft.compute.protocols.tower import TowerInputs
from weft.model.switches import Activation
from weft.model.towers.spec import Projector, Resampling, TowerRope, TowerSpec
from weft.model.weights import Tensor, Weights

SHAPE = TowerSpec(
    patch_size=16,
    temporal_patch_size=2,
    hidden_size=1024,
    intermediate_size=4096,
    num_layers=24,
    num_heads=16,
    activation=Activation.GELU_TANH,
    num_positions=48,
    resampling=Resampling.CORNERS,
    rope=TowerRope.AXIAL,
    merge=2,
    projector=Projector.MERGER,
    deepstack_layers=(5, 11, 17),
    output_size=2048,
    image_token_id=0,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--sides", type=int, nargs="+", default=[14, 32, 64], metavar="PATCHES")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    tower = NativeTower(
        SHAPE,
        random_weights(SHAPE),
        dtype=arguments.dtype,
        path=usable_paths()[0],
        num_threads=1,
    )
    limit = max(measure_roofline(arguments.dtype, 1).operations_per_s for _ in range(5))
    print(f"{usable_paths()[0]}, {arguments.dtype}: {limit / 1e9:.0f} billion operations a second")
    print("patches  seconds  of which products could take  share of the product rate")
    for side in arguments.sides:
        patches = np.random.default_rng(side).standard_normal((side**2, SHAPE.patch_dim))
        inputs = TowerInputs(patches.astype(np.float32), [(1, side, side)])
        seconds = min(timed(tower, inputs) for _ in range(arguments.repeats))
        least = operations(SHAPE, side**2) / limit
        print(f"{side**2:7}  {seconds:7.2f}  {least:28.2f}  {least / seconds:25.0%}")


def timed(tower: NativeTower, inputs: TowerInputs) -> float:
    begin = time.process_time()
    tower.encode(inputs)
    return time.process_time() - begin


def operations(spec: TowerSpec, patches: int) -> int:
    """Multiplications and additions of all products, attention's too."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    layer = 4 * hidden**2 + 2 * hidden * inner + 2 * hidden * patches
    mergers = sum((one.inner or one.output) * one.input for one in spec.projections[1:])
    mergers += sum(one.inner * one.output for one in spec.projections[1:])
    each = spec.num_layers * layer + spec.patch_dim * hidden + mergers // spec.merge**2
    return 2 * patches * each


def random_weights(spec: TowerSpec) -> Weights:
    """Random weights under Weft's names."""
    rng = np.random.default_rng(0)
    hidden, inner = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"positions": (spec.num_positions**2, hidden)}
    for index in range(spec.num_layers):
        lead = f"layers.{index}."
        shapes |= {lead + name: (hidden, hidden) for name in ("q", "k", "v", "o")}
        shapes |= {f"{lead}up": (inner, hidden), f"{lead}down": (hidden, inner)}
        for part in ("attention", "mlp"):
            name = f"{lead}{part}_norm_before"
            shapes |= {name: (hidden,), f"{name}.bias": (hidden,)}
    for one in spec.projections:
        lead = f"project.{one.name}."
        if one.norm_size:
            shapes |= {f"{lead}norm": (one.norm_size,), f"{lead}norm.bias": (one.norm_size,)}
        if one.inner:
            shapes[f"{lead}up"] = (one.inner, one.input)
        shapes[f"{lead}down"] = (one.output, one.inner or one.input)
    return Weights(
        {
            f"tower.{name}": Tensor(
                "float32", (rng.random(shape, np.float32) - 0.5) * shape[-1] ** -0.5
            )
            for name, shape in shapes.items()
        }
    )


if __name__ == "__main__":
    main()
