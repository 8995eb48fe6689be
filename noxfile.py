"""The usual tasks, each in an environment of its own: `nox -s tests`, `nox -l` lists them.

`.ci/run` does all that must hold before a change is merged; these are its quick relatives.
"""

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install("pre-commit", "-e", ".[dev]")
    session.run("pre-commit", "run", "--all-files", *session.posargs)
    session.run("mypy")


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """Run the tests."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the pages, with the saved outputs of the notebooks."""
    session.install(".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "docs", "build/docs", *session.posargs)


@nox.session
def cpp(session: nox.Session) -> None:
    """Build and run the C++ tests."""
    session.install("cmake>=3.25", "ninja", "pybind11>=3,<4", "cmeel-eigen>=3.4")
    session.run("cmake", "--preset", "dev", "-G", "Ninja")
    session.run("cmake", "--build", "--preset", "dev")
    session.run("ctest", "--preset", "dev", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build, repair and test a wheel with every CPU level: `nox -s wheel -- python3.12`."""
    session.run(".ci/wheel", "dist", *session.posargs, external=True)
