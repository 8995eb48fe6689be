"""What the verbs return. Nobody constructs these classes; annotations and `isinstance` name them.

>>> import headfit as hf
>>> fit = hf.fit(hf.patterns.band(32, 1), 8)
>>> isinstance(fit, hf.results.Fit) and isinstance(fit.certificate, hf.results.Certificate)
True
"""

from headfit._public import attach

__getattr__, __dir__, __all__ = attach(__name__, "results.pyi")
