"""The formats of the numbers that an index stores of a key."""

# The bits of a number; with 8 and fewer a key has a scale of 16 bits.
DTYPES = {"float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8, "int4": 4}


def key_bytes(dim: int, dtype: str) -> float:
    """Return what is stored of a key, in bytes, its scale included."""
    bits = DTYPES[dtype]
    return bits * dim / 8 + (2 if bits <= 8 else 0)
