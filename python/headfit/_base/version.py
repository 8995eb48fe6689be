"""The version of the package, which has one source: the file VERSION."""

from importlib.resources import files

VERSION = files("headfit").joinpath("VERSION").read_text(encoding="utf-8").strip()
