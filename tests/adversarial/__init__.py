"""An attack on `headfit.certify`, judged by an oracle that shares nothing with the package.

Run it from the root of the repository, with headfit installed (or on ``PYTHONPATH``)::

    python -m tests.adversarial --cases 100000 --seed 1
    python -m tests.adversarial --cases 1000000 --processes 2
    python -m tests.adversarial --dtype float32 --reading accumulate --family subnormal

A *case* is one call of `certify`. The command prints a table for every dtype and reading and one
for every family of generators, with the verdicts, the refusals and the lies; each kind of lie is
printed as Python code that reproduces it. The exit status is 1 when there is any.

What counts as a lie (`attack.py` has the code):

- ``false holds``, ``false fails``: a row's status, or the whole certificate's, against the truth;
- ``false bound``: ``row_leak``, ``row_distortion``, ``leak``, ``distortion``, ``max_logit``,
  ``q_norm`` or ``k_norm`` below the true value, or NaN;
- ``false place``: ``worst_leak`` or ``worst_distortion`` names columns that cannot be;
- ``unfair refusal``: an error for finite input whose logits are far from overflow;
- ``accepted``: a verdict about input that holds NaN or infinity ("spoiled" in the tables);
- ``crash``: an exception that is no HeadfitError;
- ``register``: flushing of subnormal numbers was on before the call and off after it, or the
  other way round.

In the tables, "away" counts the rows that a scan in float64 should decide
(`Truth.should_be_decided`), and "missed" those of them that the certificate calls undecided.

The files: `dyadic.py` has integers times powers of two, their logarithms and their rounding;
`oracle.py` the truth about rows; `float32_results.py` what kernels may compute in float32;
`generators.py` the families of inputs; `attack.py` the comparison, the counts and the
reproductions; `flushing.py` the processor's control register. `selection.py` is an attack of its
own, on `headfit.certify_selection`.
"""
