"""Keys found by whole pages: Quest (arXiv 2406.10774), beside which indexes are judged."""

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.heads import existing_keys
from headfit._index.group import Group
from headfit._index.quality import IndexQuality

PAGE = 16  # keys, of each of whose numbers the least and the largest are stored


def page_bounds(passage: Attention) -> Attention:
    """Return queries, and for each key one of its page, whose logits bound all of the page.

    A product with a key of the page is at most the sum over its numbers of the query's number times
    the page's largest one, or times the least one where the query's is negative. Padding is left
    out; keys of the page that come later than a row count, which a window of 16 or more makes up
    for. There are twice as many numbers.
    """
    q, k = passage.stored
    of_pages = *k.shape[:-2], -(-passage.m // PAGE), PAGE, passage.dim
    keys = np.full((*k.shape[:-2], of_pages[-3] * PAGE, passage.dim), np.nan, np.float32)
    exist = np.flatnonzero(existing_keys(passage))
    keys[..., exist, :] = k[..., exist, :]
    ends = [end.reduce(keys.reshape(of_pages), axis=-2) for end in (np.fmax, np.fmin)]
    both = np.concatenate(ends if passage.scale > 0 else ends[::-1], axis=-1)
    bounds = np.repeat(np.nan_to_num(both), PAGE, axis=-2)[..., : passage.m, :]
    signed = np.concatenate([q.clip(min=0), q.clip(max=0)], axis=-1)
    return Attention(signed, bounds, **{**vars(passage.options), "scale": passage.scale})


def judge_pages(group: Group, keys: int, window: int, first: int, threads: int) -> IndexQuality:
    """Measure how much of the attention the keys of the best pages have, in passages that judge.

    Pages are scored as keys are by an index of the form "sum", with the bounds as products.
    """
    passages = group.part(group.parts.judging)
    options, judge = _core.IndexOptions("sum", "float32", first, window), _core.judge_logits
    read = [judge(a.core, page_bounds(a).core, options, keys, threads) for a in passages]
    return IndexQuality.of(read, [a.m for a in passages], keys - window - first)
