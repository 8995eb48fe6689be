"""The character model of notebook 06: its saved weights, its loss, and the heads that it shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import headfit as hf

torch = pytest.importorskip("torch")
pytest.importorskip("headfit.torch")

SOURCE = Path(__file__).parents[2] / "notebooks" / "letters.py"


@pytest.fixture(scope="module")
def letters():
    spec = importlib.util.spec_from_file_location("letters", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(letters):
    return letters.load()


def test_loss_on_text_not_trained_on(letters, model):
    _, unseen = letters.tokens_of(model.letters)
    passages = letters.windows(unseen, 16, np.random.default_rng(2), letters.TOKENS + 1)
    with torch.no_grad():
        assert 0.5 < letters.loss_of(model, passages).item() < 1.3


def test_capture_finds_a_previous_token_head_and_an_induction_head(letters, model):
    shape = letters.LAYERS, letters.HEADS
    order = torch.from_numpy(np.random.default_rng(2).permutation(32))
    common = letters.tokens_of(model.letters)[1].bincount().argsort(descending=True)[:32]
    with hf.torch.capture(model, check=True, num_threads=1) as captured:
        captured.run([common[order].repeat(4)[None]])
    assert (len(captured.layers), captured.layers[0].heads) == shape
    assert max(layer.deviation for layer in captured.layers) < 1e-5
    numbers = captured.table().numbers
    assert numbers["previous"].max() > 0.6
    assert numbers["induction"].max() > 0.5


def test_saved_weights_load_as_they_were(letters, model, tmp_path):
    letters.save(model, tmp_path / "again.npz")
    again = letters.load(tmp_path / "again.npz")
    assert again.letters == model.letters
    for name, weights in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weights)
