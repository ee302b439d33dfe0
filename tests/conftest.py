"""The whole session is strict: shapes and types are checked, and nothing is promoted silently."""

import sys
import types
import typing

import jax
import pytest
from beartype import beartype
from hypothesis import settings
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def check_types(function):
    """Beartype, which refuses `Self` in a function that it meets outside its class."""
    hints = function.__annotations__
    function.__annotations__ = {k: typing.Any if v is typing.Self else v for k, v in hints.items()}
    return beartype(function)


# Every annotation of randq is checked at run time. This must stand before the first import of it;
# pytest loads this file before it collects a test. The hook imports its checker from a module.
sys.modules["randq_type_checker"] = types.ModuleType("randq_type_checker")
sys.modules["randq_type_checker"].check_types = check_types
install_import_hook("randq", "randq_type_checker.check_types")

# The same examples in each run: a failure is a change of ours, never of the dice.
settings.register_profile("randq", deadline=None, derandomize=True, max_examples=15, database=None)
settings.load_profile("randq")

from randq.cache import enable_compilation_cache  # noqa: E402


@pytest.fixture
def x64():
    """Float64 for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """What XLA has compiled for one test is read back in the others of this process. No other
    process shares it, and a command that runs in this one does not turn to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        enable_compilation_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("randq.cli.enable_compilation_cache", lambda: None)
        yield
