"""The import rules of the design, checked on the syntax tree: nothing is imported for this."""

import ast
from pathlib import Path

import randq

# What stands later may import what stands earlier, never the reverse. Modules and packages that do
# not exist yet have their place here already; one that has no place fails the test.
ORDER = [
    *("version", "config", "types", "threefry", "large", "normal", "cache", "storage", "packing"),
    "envs",
    "replay",
    *("noise", "networks", "actor_critic", "flows", "optimise"),
    "posteriors",
    *("regression", "settings"),
    *("exploration", "targets"),
    "agents",
    "presets",
    "evaluation",
    "loops",
    "runs",
    "sweep",
    "experiments",
    "report",
    "reproduce",
    "api",
    "",  # the package itself: it may offer the api by shorter names
    "cli",
    "__main__",
]
SHARED_BY_FAMILIES = ["base", "gaussian", "layerwise"]  # in this order; all others are families
HOMES = {
    "gymnasium": "envs.gym",
    "ale_py": "envs.gym",
    "mujoco": "envs.mujoco",
    "matplotlib": "report",
    "ray": "sweep",
}


def modules(root):
    """Dotted names inside the package, and where they are."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(tree, package):
    """Every import as (absolute module, name or None), also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield module, alias.name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((x.value, None) for x in node.args[:1] if isinstance(x, ast.Constant))


def is_in(module, home):
    return module == home or module.startswith(home + ".")


def violations(root, name="randq"):
    """Each as one line."""
    paths = dict(modules(root))
    trees = {module: ast.parse(path.read_text()) for module, path in paths.items()}
    packages = {module for module, path in paths.items() if path.stem == "__init__"}

    def found(module):
        parts = [name, *module.split(".")] if module else [name]
        package = parts if module in packages else parts[:-1]
        return list(imports(trees[module], package))

    def resolve(target, imported):
        """The module of ours that an import ends at, through the names that packages offer."""
        inner = target[len(name) + 1 :]
        if imported is None:
            return inner
        submodule = f"{inner}.{imported}".strip(".")
        if submodule in paths:
            return submodule
        if inner in packages:
            for further, offered in found(inner):
                if offered == imported and is_in(further, name):
                    return resolve(further, offered)
        return inner

    for module in trees:
        layer = module.split(".")[0]
        if layer not in ORDER:
            yield f"{module}: has no place in ORDER"
            continue
        for target, imported in found(module):
            top = target.split(".")[0]
            if top in HOMES and not is_in(module, HOMES[top]):
                yield f"{module}: imports {top}, which belongs into {HOMES[top]}"
            if top != name:
                continue
            goal = resolve(target, imported)
            goal_layer = goal.split(".")[0]
            if goal_layer not in ORDER:
                yield f"{module}: imports {goal}, which has no place in ORDER"
            elif ORDER.index(goal_layer) > ORDER.index(layer):
                yield f"{module}: imports {goal or name}, which stands later"
            elif goal == "cli" and module != "__main__":
                yield f"{module}: imports cli"
            elif layer == goal_layer == "posteriors" and not may_in_posteriors(module, goal):
                yield f"{module}: imports {goal}"
            elif layer == "agents" and (goal_layer in ("envs", "replay") or is_family(goal)):
                yield f"{module}: an agent imports {goal}"


def is_family(module):
    parts = module.split(".")
    return parts[0] == "posteriors" and len(parts) == 2 and parts[1] not in SHARED_BY_FAMILIES


def may_in_posteriors(module, goal):
    """Families import what they share, what is shared imports earlier parts; the package all."""
    own, other = (m.partition(".")[2] for m in (module, goal))
    if not own:
        return True
    if other not in SHARED_BY_FAMILIES:
        return False
    if own in SHARED_BY_FAMILIES:
        return SHARED_BY_FAMILIES.index(other) < SHARED_BY_FAMILIES.index(own)
    return True


def test_import_rules():
    root = Path(randq.__file__).parent
    assert len(list(modules(root))) > 10
    assert list(violations(root)) == []


def test_the_checker_finds_what_is_forbidden(tmp_path):
    files = {
        "__init__.py": "from randq.api import run",
        "types.py": "from . import networks",
        "networks.py": "import jax",
        "api.py": "def run():\n    from randq import cli",
        "cli.py": "from randq.cli import main\nimport randq.report.figures",
        "helpers.py": "",
        "regression.py": "import matplotlib.pyplot as plt\nimport randq",
        "envs/__init__.py": "",
        "envs/gym.py": "import gymnasium",
        "envs/chain.py": "from gymnasium import spaces\nfrom randq.envs import gym",
        "replay/__init__.py": "",
        "sweep/__init__.py": "import ray",
        "loops/__init__.py": 'import importlib\nimportlib.import_module("ray.tune")',
        "report/__init__.py": "",
        "report/figures.py": "import matplotlib",
        "posteriors/__init__.py": "from .base import Posterior\nfrom .mnf import MNF",
        "posteriors/base.py": "from randq.networks import Network",
        "posteriors/gaussian.py": "from randq.posteriors.layerwise import Layerwise",
        "posteriors/layerwise.py": "from randq.posteriors.base import Posterior",
        "posteriors/mnf.py": "from .layerwise import Layerwise\nfrom randq.posteriors import base",
        "posteriors/point.py": "from randq.posteriors.mnf import MNF",
        "posteriors/noisy.py": "from randq.posteriors import MNF",
        "posteriors/bootstrap.py": "from randq.posteriors import FAMILIES",
        "agents/__init__.py": "",
        "agents/dqn.py": "from randq.posteriors import Posterior\nfrom randq.networks import MLP",
        "agents/ddpg.py": "from randq.posteriors import MNF\nfrom randq import envs, replay",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert set(violations(tmp_path)) == {
        "types: imports networks, which stands later",
        "api: imports cli, which stands later",
        "cli: imports cli",
        "helpers: has no place in ORDER",
        "regression: imports matplotlib, which belongs into report",
        "regression: imports randq, which stands later",
        "envs.chain: imports gymnasium, which belongs into envs.gym",
        "loops: imports ray, which belongs into sweep",
        "posteriors.gaussian: imports posteriors.layerwise",
        "posteriors.point: imports posteriors.mnf",
        "posteriors.noisy: imports posteriors.mnf",
        "posteriors.bootstrap: imports posteriors",
        "agents.ddpg: an agent imports posteriors.mnf",
        "agents.ddpg: an agent imports envs",
        "agents.ddpg: an agent imports replay",
    }
