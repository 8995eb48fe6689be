#!/usr/bin/env -S uv run --script

# /// script
# dependencies = ["nox>=2025.10.14"]
# ///
"""The usual tasks, each in an environment of its own: `nox -s tests`, `nox -l` lists them.

`.ci/run` does all that must hold before a change is merged; these are its quick relatives.
"""

import nox

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"


@nox.session(default=True)
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install("pre-commit", "-e", ".[dev]")
    session.run("pre-commit", "run", "--all-files", *session.posargs)
    session.run("mypy")


@nox.session(python=["3.11", "3.12", "3.13", "3.14"], default=True)
def tests(session: nox.Session) -> None:
    """Run the tests."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the pages, with the saved outputs of the notebooks."""
    session.install(".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "docs", "build/docs", *session.posargs)


@nox.session(default=False)
def cpp(session: nox.Session) -> None:
    """Build and run the C++ tests."""
    build = nox.project.load_toml("pyproject.toml")["build-system"]["requires"]
    session.install("cmake>=3.25", "ninja", *build)
    session.run("cmake", "--preset", "dev", "-G", "Ninja")
    session.run("cmake", "--build", "--preset", "dev")
    session.run("ctest", "--preset", "dev", *session.posargs)


@nox.session(default=False)
def wheel(session: nox.Session) -> None:
    """Build, repair and test a wheel with every CPU level: `nox -s wheel -- python3.12`."""
    session.run(".ci/wheel", "dist", *session.posargs, external=True)


if __name__ == "__main__":
    nox.main()
