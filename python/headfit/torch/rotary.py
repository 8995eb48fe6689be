"""The rotary positions of a model of transformers."""

from __future__ import annotations

from typing import Any

import torch

from headfit.errors import CaptureError, InputError


def rotary_module(model: Any) -> Any:
    """Return the module of a model that makes its rotary positions."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    found = [m for m in model.modules() if getattr(m, "inv_freq", None) is not None]
    if len(found) != 1:
        raise CaptureError(
            f"the model must have one rotary embedding, a module with inv_freq; it has {len(found)}"
        )
    return found[0]


def rotary_position(model: Any) -> tuple[str, tuple[float, ...]]:
    """Return the rotary position of a model of transformers, as `compress_keys` takes it.

    Parameters
    ----------
    model : PreTrainedModel
        A model with one rotary embedding for all layers, as the Llama type has.

    Returns
    -------
    tuple
        ("rope-half", frequencies), or ("rope", frequencies) where neighbours turn together.

    Raises
    ------
    CaptureError
        For a model without a rotary embedding, with several, or with one of another kind.

    Examples
    --------
    >>> import transformers, headfit as hf, headfit.torch
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...     num_attention_heads=2)
    >>> hf.torch.rotary_position(transformers.LlamaForCausalLM(config))[0]
    'rope-half'
    """
    module = rotary_module(model)
    kind = getattr(module, "rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise CaptureError(f"the frequencies of the model change with the length: {kind!r}")
    x = module.inv_freq
    places = torch.arange(1, 3, device=x.device)[None]
    cosines = module(x.new_zeros(1, 2, 2 * len(x)), position_ids=places)[0]
    if torch.equal(*cosines.chunk(2, dim=-1)):
        return "rope-half", tuple(x.double().tolist())
    if torch.equal(cosines[..., ::2], cosines[..., 1::2]):
        return "rope", tuple(x.double().tolist())
    raise CaptureError("the model's rotary embedding turns pairs of entries that are not known")
