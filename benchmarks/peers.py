"""What one would use without headfit: full-batch Adam on the cross-entropy, n x n in memory.

It runs in two variants: as one would first write it, and with the best of the learning rates 0.02,
0.05, 0.1 and 0.2 on the targets of `small_heads.py` (with 0.02 some and with 0.05 most never reach
the tolerances), starting from queries that are the weighted sums of their keys. For 512 x 4 in
d = 6 none of these rates, nor 0.01 from a random start, succeeds in 100 seconds. Subnormal numbers
are flushed to zero, as JAX does; without that PyTorch takes up to five times as long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

LEAK, SPREAD = 0.05, 0.1
CHECK_EVERY = 50


@dataclass(frozen=True)
class Recipe:
    """A learning rate and a start."""

    name: str
    learning_rate: float
    queries_from_keys: bool

    def start(self, A, dim):
        """Return a dense target and the start that both libraries share."""
        target = A.toarray().astype(np.float32)
        rng = np.random.default_rng(0)
        K, Q = rng.standard_normal((2, A.shape[0], dim)).astype(np.float32)
        return target, 2 * target @ K if self.queries_from_keys else Q, K


FIRST_TRY = Recipe("rate 0.01, random start", 0.01, False)
TUNED = Recipe("tuned", 0.2, True)


def adam_in_torch(A, dim, recipe, limit, most_steps=None):
    """Return seconds (None: not certified) and steps to the tolerances."""
    import torch

    torch.set_flush_denormal(True)
    dense, q, k = recipe.start(A, dim)
    target = torch.from_numpy(dense)
    support, log_target = target > 0, torch.log(target.clamp_min(1e-30))
    Q, K = (torch.from_numpy(x).requires_grad_() for x in (q, k))
    optimiser = torch.optim.Adam([Q, K], lr=recipe.learning_rate)
    start, step = time.perf_counter(), 0
    while time.perf_counter() - start < limit and step != most_steps:
        S = Q @ K.T
        loss = -(target * torch.log_softmax(S, 1)).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                least = S.masked_fill(~support, torch.inf).amin(1)
                leak = (S.masked_fill(support, -torch.inf).amax(1) - least).max()
                excess = S - log_target
                high = excess.masked_fill(~support, -torch.inf).amax(1)
                spread = (high - excess.masked_fill(~support, torch.inf).amin(1)).max()
                if leak <= np.log(LEAK) and spread <= SPREAD:
                    return time.perf_counter() - start, step
    return (None if most_steps is None else time.perf_counter() - start), step


def adam_in_jax(A, dim, recipe, limit, most_steps=None):
    """Return the same for JAX and Optax with a jitted step; compilation is not counted."""
    import jax
    import jax.numpy as jnp
    import optax

    dense, q, k = recipe.start(A, dim)
    target = jnp.asarray(dense)
    support, log_target = target > 0, jnp.log(jnp.maximum(target, 1e-30))
    optimiser = optax.adam(recipe.learning_rate)

    def loss(parameters):
        logits = parameters[0] @ parameters[1].T
        return -(target * jax.nn.log_softmax(logits, 1)).sum(1).mean()

    @jax.jit
    def step(parameters, state):
        updates, state = optimiser.update(jax.grad(loss)(parameters), state)
        return optax.apply_updates(parameters, updates), state

    @jax.jit
    def worst(parameters):
        logits = parameters[0] @ parameters[1].T
        least = jnp.where(support, logits, jnp.inf).min(1)
        leak = (jnp.where(support, -jnp.inf, logits).max(1) - least).max()
        excess = logits - log_target
        high = jnp.where(support, excess, -jnp.inf).max(1)
        return leak, (high - jnp.where(support, excess, jnp.inf).min(1)).max()

    parameters = (jnp.asarray(q), jnp.asarray(k))
    state = optimiser.init(parameters)
    jax.block_until_ready((step(parameters, state), worst(parameters)))
    start, taken = time.perf_counter(), 0
    while time.perf_counter() - start < limit and taken != most_steps:
        parameters, state = step(parameters, state)
        taken += 1
        if taken % CHECK_EVERY == 0:
            leak, spread = worst(parameters)
            if leak <= np.log(LEAK) and spread <= SPREAD:
                return time.perf_counter() - start, taken
    jax.block_until_ready(parameters)
    return (None if most_steps is None else time.perf_counter() - start), taken
