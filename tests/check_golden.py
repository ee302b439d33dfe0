"""Check one MNF layer against golden values of an independent implementation.

    python tests/check_golden.py FILE [--dtype float64|float32]

prints one line a case, with the largest error of the outputs, of the cost and of the gradients,
each relative to the largest expected entry of its array, and exits 1 if one is past the tolerance
(1e-9 in float64, 1e-4 in float32). Any sizes do, and any number of steps in the two flows.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from randq.flows import Flow, RealNVPStep
from randq.networks import Linear
from randq.posteriors.mnf import Auxiliary, MNFLayer, NoiseSample

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


class Reader:
    """Builds the layer, its noise and the inputs of one case, in one dtype."""

    def __init__(self, case: dict[str, Any], dtype: str) -> None:
        self.case = case
        self.dtype = dtype

    def array(self, values: Any) -> jax.Array:
        return jnp.asarray(np.asarray(values, np.float64), self.dtype)

    def linear(self, step: dict[str, Any], name: str) -> Linear:
        return Linear(self.array(step[f"{name}_weight"]), self.array(step[f"{name}_bias"]))

    def flow(self, steps: list[dict[str, Any]]) -> Flow:
        return Flow(
            tuple(RealNVPStep(*(self.linear(step, name) for name in "abc")) for step in steps)
        )

    def layer(self) -> MNFLayer:
        q, r = self.case["posterior"], self.case["auxiliary"]
        return MNFLayer(
            mean_layer=Linear(self.array(q["weight_mean"]), self.array(q["bias_mean"])),
            weight_log_std=self.array(q["weight_log_std"]),
            bias_log_std=self.array(q["bias_log_std"]),
            z0_mean=self.array(q["z0_mean"]),
            z0_log_std=self.array(q["z0_log_std"]),
            flow=self.flow(q["flow"]),
            auxiliary=Auxiliary(
                *(self.array(r[name]) for name in ("c", "b1", "b2")), self.flow(r["flow"])
            ),
            prior_std=1.0,
        )

    def noise(self) -> NoiseSample:
        size = len(self.case["posterior"]["z0_mean"])

        def masks(part: str) -> jax.Array:
            return self.array([s["mask"] for s in self.case[part]["flow"]]).reshape(-1, size)

        noise = self.case["noise"]
        return NoiseSample(
            epsilon_z=self.array(noise["epsilon_z"]),
            epsilon_weight=self.array(noise["epsilon_weight"]),
            epsilon_bias=self.array(noise["epsilon_bias"]),
            masks=masks("posterior"),
            auxiliary_masks=masks("auxiliary"),
        )


def gradients_by_name(gradient: MNFLayer) -> dict[str, Any]:
    """The gradient of the cost under the names, and in the nesting, of the golden file."""

    def steps(flow: Flow) -> list[dict[str, Any]]:
        return [
            {
                f"{name}_{part}": getattr(getattr(step, name), part)
                for name in "abc"
                for part in ("weight", "bias")
            }
            for step in flow.steps
        ]

    r = gradient.auxiliary
    return {
        "weight_mean": gradient.mean_layer.weight,
        "bias_mean": gradient.mean_layer.bias,
        "weight_log_std": gradient.weight_log_std,
        "bias_log_std": gradient.bias_log_std,
        "z0_mean": gradient.z0_mean,
        "z0_log_std": gradient.z0_log_std,
        "flow": steps(gradient.flow),
        "c": r.c,
        "b1": r.b1,
        "b2": r.b2,
        "auxiliary_flow": steps(r.flow),
    }


def worst(errors: Iterable[float]) -> float:
    """The largest error; unlike `max`, a NaN among them is never lost."""
    return float(np.max([0.0, *errors]))


def relative_error(got: Any, expected: Any) -> float:
    """The largest error over nested values, each array relative to its largest expected entry."""
    if isinstance(expected, dict):
        return worst(relative_error(got[k], v) for k, v in expected.items())
    if isinstance(expected, list) and expected and isinstance(expected[0], dict):
        return worst(relative_error(g, e) for g, e in zip(got, expected, strict=True))
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.shape != expected.shape:
        raise ValueError(f"expected a value of shape {expected.shape}, computed {got.shape}")
    if not expected.size:
        return 0.0
    scale = np.abs(expected).max()
    return float(np.abs(got - expected).max() / (scale if scale > 0 else 1.0))


@jax.jit
def compute(
    layer: MNFLayer, noise: NoiseSample, x: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array, MNFLayer]:
    """The outputs under their golden names, the cost, and its gradient for fixed noise."""
    z0 = layer.z0_mean + jnp.exp(layer.z0_log_std) * noise.epsilon_z
    z, log_det = layer.flow(z0, noise.masks)
    outputs = {
        "z_K": z,
        "sum_log_det": log_det,
        "output": jax.vmap(layer.draw(noise)[0])(x),
        "output_noise_disabled": jax.vmap(layer.mean())(x),
    }
    return outputs, *jax.value_and_grad(lambda layer: layer.draw(noise)[1])(layer)


def check(case: dict[str, Any], dtype: str) -> dict[str, float]:
    """The largest relative errors of one case."""
    reader, expected = Reader(case, dtype), case["expected"]
    layer, noise, x = reader.layer(), reader.noise(), reader.array(case["x"])

    if not expected["gradient_of_cost"]:
        raise ValueError("gradient_of_cost is empty")
    outputs, value, gradient = compute(layer, noise, x)
    return {
        "outputs": relative_error(outputs, {k: expected[k] for k in outputs}),
        "cost": relative_error(value, expected["regularization_cost"]),
        "gradients": relative_error(gradients_by_name(gradient), expected["gradient_of_cost"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--dtype", choices=TOLERANCE, default="float64")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")
    try:
        cases = json.loads(arguments.file.read_text())
        if not (isinstance(cases, list) and cases):
            raise ValueError("it must hold a list of at least one case")
    except (OSError, ValueError) as error:
        print(f"{arguments.file}: not a golden file: {error}", file=sys.stderr)
        return 2

    tolerance, failures = TOLERANCE[arguments.dtype], 0
    for number, case in enumerate(cases):
        name = case.get("name", f"case {number}") if isinstance(case, dict) else f"case {number}"
        try:
            errors = check(case, arguments.dtype)
        except (KeyError, TypeError, ValueError) as error:
            print(f"FAIL {name}: {type(error).__name__}: {error}")
            failures += 1
            continue
        # Written so that a NaN fails.
        ok = all(error <= tolerance for error in errors.values())
        failures += not ok
        listed = "  ".join(f"{what} {error:.1e}" for what, error in errors.items())
        print(f"{'ok  ' if ok else 'FAIL'} {name:<20} {listed}")
    print(f"{len(cases) - failures} of {len(cases)} cases within {tolerance:g} ({arguments.dtype})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
