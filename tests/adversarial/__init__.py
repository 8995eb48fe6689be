"""Attacks on the package: what must hold whatever it is given."""
