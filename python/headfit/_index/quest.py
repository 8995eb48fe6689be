"""Keys found by whole pages: Quest (arXiv 2406.10774), beside which indexes are judged."""

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.heads import existing_keys
from headfit._index.group import Group
from headfit._index.quality import IndexQuality

PAGE = 16  # keys, of each of whose numbers the least and the largest are stored


def page_bounds(passage: Attention) -> Attention:
    """Return queries, and for each key one of its page, whose products bound all of the page.

    A product with a key of the page is at most the sum over its numbers of the query's number times
    the page's largest one, or times the least one where the query's is negative. Padding is left
    out. There are twice as many numbers.
    """
    q, k = passage.stored
    pages = np.full((*k.shape[:-2], -(-passage.m // PAGE), PAGE, passage.dim), np.nan, np.float32)
    exist = existing_keys(passage)
    pages.reshape(*k.shape[:-2], -1, passage.dim)[..., : passage.m, :][..., exist, :] = k[
        ..., exist, :
    ]
    ends = np.concatenate([np.fmax.reduce(pages, axis=-2), np.fmin.reduce(pages, axis=-2)], axis=-1)
    bounds = np.repeat(np.nan_to_num(ends), PAGE, axis=-2)[..., : passage.m, :]
    signed = np.concatenate([q.clip(min=0), q.clip(max=0)], axis=-1)
    return Attention(signed, bounds, **vars(passage.options))


def judge_pages(group: Group, keys: int, window: int, first: int, threads: int) -> IndexQuality:
    """Measure how much of the attention the keys of the best pages have, in passages that judge.

    Pages are scored as keys are by an index of the form "sum", with the bounds as products.
    """
    passages, width = group.part(group.parts.judging), 2 * group.width
    of_keys = np.eye(width, dtype=np.float32).reshape(group.key_heads, -1, width)
    scaled = of_keys * np.float32(group.attentions[0].scale)
    of_queries = np.repeat(scaled, group.heads // group.key_heads, axis=0)
    maps = np.concatenate([of_queries, of_keys]).reshape(-1, width)
    options, judge = _core.IndexOptions("sum", "float32", first, window), _core.judge_index
    read = [judge(a.core, maps, options, keys, threads, page_bounds(a).core) for a in passages]
    return IndexQuality.of(read, [a.m for a in passages], keys - window - first)
