"""Files of sweeps in TOML: points, and errors that name the table and the key."""

from __future__ import annotations

import pytest

import headfit as hf
from headfit._cli.sweeping import read_sweep_file
from headfit._sweep.work import Work, tasks_of
from headfit.errors import InputError, MissingFileError


def test_grids_add_up_and_out_is_beside_the_file(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'out = "results"\nworkers = 3\nnum_threads = 2\n'
        '[[grid]]\npattern = "band"\nn = [8, 16]\nneighbors = 1\nmask = [["window", [1, 1]]]\n'
        '[[grid]]\npattern = "circulant"\nn = 8\noffsets = [[-1, 2]]\nseed = [0, 1]\n'
    )
    said = read_sweep_file(file)
    assert (said["out"], said["workers"], said["num_threads"]) == (tmp_path / "results", 3, 2)
    bands = hf.sweep.grid(pattern="band", n=[8, 16], neighbors=1, mask=[["window", [1, 1]]])
    rings = hf.sweep.grid(pattern="circulant", n=8, offsets=[[-1, 2]], seed=[0, 1])
    assert said["points"] == [t.point for t in tasks_of(bands + rings, Work.of(None, None))]


MANY = list(range(400))
GOOD = 'pattern = "band"\nn = 8\nneighbors = 1\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "grid must be given"),
        ("grid = 3", "grid must be given"),
        ("grid = []", "grid must be given"),
        ("grid = [3]", "grid must be given"),
        ("[grid\n", "is no sweep in TOML"),
        ("\xff\xfe", "is no sweep in TOML"),
        (f"[grid]\n{GOOD}widht = 3\n", "grid 1 of 1: points[0]: widht is no key"),
        (f"[grid]\n{GOOD}leak = [0.1, 2]\n", "points[1]: leak must"),
        (f"[grid]\n{GOOD}leak = nan\n", "leak must be finite"),
        (f"[grid]\n{GOOD}dim = []\n", "dim must have at least one value"),
        (f"[grid]\n{GOOD}seed = 2026-11-23\n", "seed must"),
        (
            f"[[grid]]\n{GOOD}[[grid]]\npattern = 'nothing'\n",
            "grid 2 of 2: points[0]: pattern must",
        ),
        (f"[grid]\n{GOOD}seed = {'9' * 5000}\n", "in TOML: Exceeds the limit"),
        (
            f"[grid]\n{GOOD}" + "".join(f"{k} = {MANY}\n" for k in ("seed", "dim", "k")),
            "grid 1 of 1: a grid must have at most 10,000,000 points; got 64,000,000 from the "
            "values of seed: 400, dim: 400, k: 400",
        ),
        (f"[grid]\n{GOOD}mask = ['window', 16]\n", 'in a list of its own: mask = [["window", 16]]'),
        (f"thing = 1\n[grid]\n{GOOD}", "thing is no key"),
        (f"out = 1\n[grid]\n{GOOD}", "out must"),
    ],
)
def test_errors_name_the_file_and_the_key(text, words, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(InputError) as caught:
        read_sweep_file(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(MissingFileError, match="file: "):
        read_sweep_file(tmp_path / "nowhere.toml")
