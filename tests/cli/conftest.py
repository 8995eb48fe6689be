"""Commands run in a folder of their own."""

from __future__ import annotations

import pytest

from headfit import cli


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; return status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call
