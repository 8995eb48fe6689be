"""From weights: `from_projections`, the heads of a layer; `rotary_position`, that of a model."""

import sys
from typing import Any

import numpy as np
import torch

from headfit._attention.attention import Attention
from headfit._base import arrays
from headfit._base.arguments import as_count
from headfit.errors import CaptureError, InputError


def stored(x: Any, name: str, ndim: int = 2) -> arrays.FloatArray:
    """Return a tensor, or an array, as an array on the CPU, without a copy if it is there."""
    return arrays.as_stored_array(x.cpu() if isinstance(x, torch.Tensor) else x, name, ndim=ndim)


def _project(heads: int, **given: Any) -> arrays.FloatArray:
    """Return X W^T + b, split into heads: shape (..., heads, n, d)."""
    (x_name, X), (w_name, W), (b_name, b) = given.items()
    x, w = stored(X, x_name), stored(W, w_name)
    arrays.check_finite(x, x_name)
    arrays.check_finite(w, w_name)
    if w.ndim != 2 or w.shape[0] % heads or not w.size:
        raise InputError(
            f"{w_name} must be a matrix (out, in) with rows for {heads} heads; got {w.shape}"
        )
    if x.shape[-1] != w.shape[1]:
        raise InputError(
            f"{x_name} must have {w.shape[1]} columns, as {w_name} has; got shape {x.shape}"
        )
    w = arrays.widened(w)
    y = np.empty((*x.shape[:-1], w.shape[0]), arrays.computed_in(x, w))
    for rows, block in arrays.blocks_of_rows(x.reshape(-1, x.shape[-1])):
        np.matmul(block, w.T, out=y.reshape(-1, w.shape[0])[rows])
    if b is not None:
        bias = arrays.widened(stored(b, b_name, 1))
        arrays.check_finite(bias, b_name)
        if bias.shape != w.shape[:1]:
            raise InputError(f"{b_name} must have shape {w.shape[:1]}; got {bias.shape}")
        y += bias
    split: arrays.FloatArray = y.reshape(*y.shape[:-1], heads, w.shape[0] // heads)
    return np.ascontiguousarray(np.moveaxis(split, -2, -3))


def from_projections(
    X: Any,
    W_q: Any,
    W_k: Any,
    b_q: Any = None,
    b_k: Any = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    X_k: Any = None,
    **options: Any,
) -> Attention:
    """Return the attention of a layer, given its input and its projections of queries and keys.

    Parameters
    ----------
    X : tensor or array_like, shape (..., n, E)
        The input of the projections. Apply a layer norm before them yourself; layer norms of
        queries and keys are not applied either.
    W_q : tensor or array_like, shape (num_heads * d, E)
        The weights of the queries as `torch.nn.Linear` stores them, one head after the other:
        ``q_proj.weight`` of Llama, ``query.weight`` of BERT. (GPT-2 stores the transpose.)
    W_k : tensor or array_like, shape (num_kv_heads * d, E)
        The weights of the keys.
    b_q, b_k : tensor or array_like, shape (num_heads * d,) and (num_kv_heads * d,), optional
        The biases of queries and keys.
    num_heads : int
        The number of query heads.
    num_kv_heads : int, optional
        The number of key heads, a divisor of num_heads; num_heads when None.
    X_k : tensor or array_like, shape (..., m, E_k), optional
        The input of the keys in cross attention; X when None. `W_k` then has E_k columns.
    **options
        Those of `Attention`, such as ``scale``, ``mask`` and ``position`` for rotary positions.

    Returns
    -------
    Attention
        With Q of shape (..., num_heads, n, d) and K of shape (..., num_kv_heads, m, d).

    Raises
    ------
    InputError
        For shapes that do not fit together.
    NonFiniteError
        For NaN or infinity in an array.

    Notes
    -----
    Tensors on any device are copied to the CPU, without their gradients. float16 and bfloat16
    are widened to float32, exactly, and products are not rounded back. Takes
    O(n E num_heads d) time.

    Examples
    --------
    >>> import numpy as np, headfit as hf, headfit.torch
    >>> rng = np.random.default_rng(0)
    >>> X, W_q, W_k = (rng.normal(size=(rows, 32)) for rows in (10, 32, 16))
    >>> hf.torch.from_projections(X, W_q, W_k, num_heads=4, num_kv_heads=2, mask="causal").lead
    (4,)
    """
    heads = as_count(num_heads, "num_heads", 1)
    kv_heads = heads if num_kv_heads is None else as_count(num_kv_heads, "num_kv_heads", 1)
    if heads % kv_heads:
        raise InputError(f"num_kv_heads must divide num_heads, {heads}; got {kv_heads}")
    Q = _project(heads, X=X, W_q=W_q, b_q=b_q)
    K = _project(kv_heads, **({"X": X} if X_k is None else {"X_k": X_k}), W_k=W_k, b_k=b_k)
    if Q.shape[-1] != K.shape[-1]:
        raise InputError(
            f"W_q and W_k must give heads of one size; got {Q.shape[-1]} and {K.shape[-1]}"
        )
    return Attention(Q, K, **options)


def rotary_modules(model: Any) -> list[Any]:
    """Return the modules of a model that make its rotary positions."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    return [  # Falcon has one that it does not use beside ALiBi.
        m for m in model.modules() if getattr(m, "inv_freq", None) is not None
        and not getattr(getattr(m, "config", None), "alibi", False)
    ]  # fmt: skip


def rotary_position(model: Any) -> tuple[str, tuple[float, ...]]:
    """Return the rotary position of a model of transformers, as `compress_keys` takes it.

    Parameters
    ----------
    model : PreTrainedModel
        A model with one rotary embedding for all layers, as the Llama type has.

    Returns
    -------
    tuple
        ("rope-half", frequencies), or ("rope", frequencies) where neighbours turn together;
        frequencies are negative where the model turns by minus the angle.

    Raises
    ------
    CaptureError
        For a model without a rotary embedding, with several, or with one of another kind, such as
        one that turns a part of each head.

    Examples
    --------
    >>> import transformers, headfit as hf, headfit.torch
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...     num_attention_heads=2)
    >>> hf.torch.rotary_position(transformers.LlamaForCausalLM(config))[0]
    'rope-half'
    """
    found = rotary_modules(model)
    if len(found) != 1:
        raise CaptureError(
            f"the model must have one rotary embedding, a module with inv_freq; it has {len(found)}"
        )
    module = found[0]
    kind = getattr(module, "rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise CaptureError(f"the frequencies of the model change with the length: {kind!r}")
    config = getattr(module, "config", None) or getattr(model, "config", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if (part := rope.get("partial_rotary_factor", 1)) != 1:
        raise CaptureError(f"the model turns a part of each head alone: {part} of its numbers")
    x = module.inv_freq
    unit = torch.eye(2 * len(x)).to(x)[None, None, :1]
    # Not as a module, whose hooks would take this for a call of the model.
    angles = module.forward(unit[0], position_ids=torch.ones(1, 1, dtype=int, device=x.device))
    turn = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", lambda *x: x)
    turned = turn(unit, unit, *angles)[0].flatten()
    pair = 1 + int(turned[1:].abs().argmax())
    if pair not in (1, len(x)) or turned[pair] == 0:
        raise CaptureError("the model's rotary embedding turns pairs of entries that are not known")
    signed = x.double() * turned[pair].sign()  # some models turn by minus the angle
    return "rope-half" if pair == len(x) else "rope", tuple(signed.tolist())
