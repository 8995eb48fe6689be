"""The methods of `fit`, and what a method of your own is made of."""

from headfit._fit.filters import Mixed, Toeplitz
from headfit._fit.head import Head, Problem
from headfit._fit.learned import Learned
from headfit._fit.max_margin import KeyTable, MaxMargin
from headfit._fit.method import Method
from headfit._fit.projection import Projection
from headfit._target.append_dims import append_dims

__all__ = [
    "Head",
    "KeyTable",
    "Learned",
    "MaxMargin",
    "Method",
    "Mixed",
    "Problem",
    "Projection",
    "Toeplitz",
    "append_dims",
]
