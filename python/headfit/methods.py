"""The methods of `fit`, and what a method of your own is made of.

>>> import headfit as hf
>>> A = hf.patterns.band(32, 1)
>>> hf.fit(A, 4, method=hf.methods.Toeplitz()).certificate.holds
True
"""

from headfit._public import attach

__getattr__, __dir__, __all__ = attach(__name__, "methods.pyi")
