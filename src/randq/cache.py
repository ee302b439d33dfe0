"""The compilation cache: what XLA has compiled once is read back in every later process."""

import os
import tempfile
from pathlib import Path

import jax


def cache_directory() -> Path:
    """JAX_COMPILATION_CACHE_DIR, or `randq` in the user's folder for caches."""
    if given := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "randq"


def enable_compilation_cache() -> Path | None:
    """Turn the cache on for this process, and say where it is; None if nothing can be kept."""
    try:
        folder = cache_directory().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):  # no right to write, a full disk, or no home
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # By default JAX keeps only what took a second to compile: of small programs, nothing.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
