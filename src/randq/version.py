"""Which version of the package this is."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("randq")
except PackageNotFoundError:  # used from its source, not installed
    VERSION = "unknown"
