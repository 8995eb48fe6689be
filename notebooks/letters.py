"""A small character transformer in PyTorch: the model of notebook 06, and how it was trained.

    python letters.py            # trains it anew: 20 minutes on one core

It reads the documentation that comes with Python (`pydoc_data.topics`). The last tenth of the
text is not trained on: there, its loss is 1.19 nats per character over passages of 128 characters,
where that of notebook 03 has 1.31. The trained weights are kept in letters.npz, rounded to float16.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WEIGHTS = Path(__file__).with_suffix(".npz")
TOKENS, LAYERS, HEADS, WIDTH = 256, 3, 4, 128


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Return queries or keys of shape (batch, heads, n, size) with rotary positions."""
    n, size = x.shape[-2:]
    frequencies = 10_000.0 ** -(torch.arange(0, size, 2) / size)
    angles = torch.arange(n)[:, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Attention(nn.Module):
    """Causal attention of several heads, with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        # Biases let a head choose keys by their distance alone.
        self.q, self.k = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        out = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then two linear maps for each token, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = (nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Letters(nn.Module):
    """Guess the next character: logits of shape (batch, n, letters) from tokens (batch, n)."""

    def __init__(self, letters: str) -> None:
        super().__init__()
        self.letters = letters
        self.letter = nn.Embedding(len(letters), WIDTH)
        nn.init.normal_(self.letter.weight, std=0.3)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.after = nn.LayerNorm(WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, len(letters), bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        # The argument has the name that it has in transformers: `capture` knows the tokens by it.
        x = self.letter(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.last(self.after(x))


def load(path: Path = WEIGHTS) -> Letters:
    """Return the trained model."""
    with np.load(path) as file:
        model = Letters(str(file["letters"]))
        state = {
            name: torch.from_numpy(file[name].astype(np.float32))
            for name in file.files
            if name != "letters"
        }
    model.load_state_dict(state)
    return model.eval()


def text() -> str:
    """Return the text that the model reads."""
    return "\n".join(topics[name] for name in sorted(topics))


def tokens_of(letters: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the text as tokens: what is trained on, and the last tenth, which is not."""
    place = {letter: i for i, letter in enumerate(letters)}
    data = torch.tensor([place[letter] for letter in text() if letter in place])
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:]


def windows(data: torch.Tensor, count: int, rng: np.random.Generator, n: int) -> torch.Tensor:
    """Return `count` random passages of n tokens."""
    starts = rng.integers(0, len(data) - n, count)
    return torch.stack([data[s : s + n] for s in starts])


def batch(data: torch.Tensor, n: int, rng: np.random.Generator) -> torch.Tensor:
    """Return passages of n + 1 tokens to train on: half of them repeat a span.

    Half of these spans are text, and half are random characters. Where a passage repeats itself, it
    pays to look up what followed the same character earlier: this is what induction heads do.
    """
    count = 16 * TOKENS // n
    passages = windows(data, count, rng, n + 1)
    random = passages[: count // 4]
    random[:] = torch.from_numpy(rng.integers(0, int(data.max()) + 1, random.shape))
    for passage in passages[: count // 2]:
        period = int(rng.integers(n // 8, n // 2))
        passage[:] = passage[torch.arange(n + 1) % period]
    return passages


def loss_of(model: Letters, passages: torch.Tensor) -> torch.Tensor:
    """Return the mean loss, in nats per character."""
    guess = model(passages[:, :-1])
    return F.cross_entropy(guess.flatten(0, 1), passages[:, 1:].flatten())


def train(steps: int, seed: int = 0) -> Letters:
    """Train the model from random weights, and print its losses.

    Passages grow from 32 to 256 tokens, and double after each eighth of the steps: induction heads
    form sooner where there are few keys.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    letters = "".join(sorted(set(text())))
    model = Letters(letters)
    data, unseen = tokens_of(letters)
    test = windows(unseen, 32, np.random.default_rng(1), TOKENS + 1)
    repeated = batch(unseen, TOKENS, np.random.default_rng(1))[:4]
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, steps, pct_start=0.05, cycle_momentum=False
    )
    print("step, loss of the step, on unseen text, and on repeated random characters")
    for step in range(steps):
        eighths = 8 * step // steps
        n = min(TOKENS, 32 * 2**eighths)
        loss = loss_of(model, batch(data, n, rng))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            with torch.no_grad():
                losses = loss, loss_of(model, test), loss_of(model, repeated)
            print(step + 1, *(f"{x.item():.3f}" for x in losses), flush=True)
    return model


def save(model: Letters, path: Path = WEIGHTS) -> None:
    """Write the weights, rounded to float16, in place of what was there."""
    arrays = {name: value.numpy().astype(np.float16) for name, value in model.state_dict().items()}
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, letters=model.letters, **arrays)
    os.replace(part, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2400)
    save(train(parser.parse_args().steps))
