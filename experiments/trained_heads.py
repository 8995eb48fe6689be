"""The heads of notebook 03's character transformer: their fixed weights and natural inputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headfit as hf

WEIGHTS = Path(__file__).parents[1] / "notebooks" / "03-a-real-head.npz"
LAYERS, HEADS, SIZE, TOKENS = 2, 4, 16, 128
NAMES = tuple(f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS))
EPSILON = 1e-5

Array = NDArray[np.float32]


@cache
def weights() -> dict[str, Any]:
    """Return the model's weights, and its letters."""
    with np.load(WEIGHTS) as file:
        return {
            name: str(file[name]) if name == "letters" else file[name].astype(np.float32)
            for name in file.files
        }


def layer_norm(x: Any, gain: Any) -> Any:
    """Return the rows of x with mean 0 and variance 1, times the gain; this model has no bias."""
    x = x - x.mean(-1, keepdims=True)
    return gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def gain(name: str) -> Array:
    """Return the gain of the layer norm that a head's input comes through."""
    result: Array = weights()[f"{name[1]}.before"]
    return result


@cache
def module(name: str) -> hf.SelfAttention:
    """Return a head as a module: its W_Q and W_K, of shape (64, 16)."""
    layer, head = name[1], int(name[3])
    part = slice(SIZE * head, SIZE * (head + 1))
    return hf.SelfAttention(weights()[f"{layer}.q"][:, part], weights()[f"{layer}.k"][:, part])


@cache
def layers() -> tuple[tuple[Array, Array, Array], ...]:
    """Return input, queries and keys of each layer for the last 128 characters of the text.

    The input has shape (128, 64), queries and keys (4, 128, 16).
    """
    w = weights()
    place = {letter: i for i, letter in enumerate(w["letters"])}
    text = "\n".join(topics[name] for name in sorted(topics))
    tokens = [place[letter] for letter in text if letter in place][-TOKENS:]
    x, found = w["letter"][tokens] + w["place"], []
    for i in range(LAYERS):
        normed = layer_norm(x, w[f"{i}.before"])
        q, k, v = (
            (normed @ w[f"{i}.{part}"]).reshape(TOKENS, HEADS, SIZE).swapaxes(0, 1)
            for part in "qkv"
        )
        found.append((normed, q, k))
        attended = hf.attention_apply(q, k, v, mask="causal", num_threads=1)
        x = x + attended.swapaxes(0, 1).reshape(x.shape) @ w[f"{i}.out"]
        up = layer_norm(x, w[f"{i}.between"]) @ w[f"{i}.up"]
        x = x + (up * (up > 0)) @ w[f"{i}.down"]
    return tuple(found)


def natural_inputs() -> tuple[Array, ...]:
    """Return the input of each layer's heads for the last 128 characters of the model's text."""
    return tuple(x for x, _, _ in layers())
