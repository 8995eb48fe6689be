"""Reading of ordinary files only, arrays included; writing that leaves no file half written.

Saved heads are .npz and .safetensors files of plain arrays and one JSON text each.
"""

import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from headfit._base.arguments import shown
from headfit._base.arrays import NARROW, narrow_dtype
from headfit._base.display import optional
from headfit._base.machine import require_memory
from headfit.errors import FileError, InputError, MissingFileError, TooLargeError

Result = TypeVar("Result")


def as_path(path: Any, name: str) -> str:
    """Return the name of a file as text, or raise an InputError."""
    try:
        text = os.fspath(path)
    except TypeError as error:
        raise InputError(f"{name} must be a str or a path; got {shown(path)}") from error
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} must be a str or a path, and not empty; got {shown(path)}")
    return text


def file_error(name: str, path: str, problem: str, error: OSError) -> FileError:
    """Return an error of the system as one that names the argument and its path."""
    kind = MissingFileError if isinstance(error, FileNotFoundError) else FileError
    return kind(f"{name}: {path} {problem}: {error.strerror or error}", error.errno, path)


@contextmanager
def file_errors(name: str, path: str, problem: str) -> Iterator[None]:
    """Make errors of the system name the argument and its path, and say what is wrong with it."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise file_error(name, path, problem, error) from error


@contextmanager
def opened(path: Any, name: str, otherwise: str) -> Iterator[IO[bytes]]:
    """Open an ordinary file for reading; raise a FileError at once for anything else.

    The message names the argument and says what such a path is not: `otherwise`, "is no saved fit".
    """
    text = as_path(path, name)
    with file_errors(name, text, otherwise):
        # Without O_NONBLOCK, opening a pipe that nobody writes to would block.
        handle = os.open(text, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            os.close(handle)
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise FileError(f"{name}: {text} {otherwise}: it is {kind}", filename=text)
        with os.fdopen(handle, "rb") as stream:
            yield stream


def replace_file(path: Path, write: Callable[[IO[bytes]], Any]) -> Path:
    """Call ``write(file)`` on a new file beside `path`, rename it to `path`, and return that.

    The permissions of the file that is replaced stay. A link stays a link, and the file that it
    names is replaced.
    """
    target = Path(os.path.realpath(path))
    with file_errors("path", str(target), "cannot be written"):
        old = target.stat() if target.exists() else None
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise FileError(f"path: {path} cannot be written: it is no ordinary file")
        # `tempfile` would make a new file readable by its owner alone; here the umask decides.
        temporary = target.parent / f".headfit-{secrets.token_hex(8)}.tmp"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        handle = os.open(temporary, flags, 0o666 if old is None else 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if old is not None:
                temporary.chmod(stat.S_IMODE(old.st_mode))
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return path


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write plain arrays to an .npz file of exactly this name."""
    plain = {name: np.asarray(value) for name, value in arrays.items()}
    for name, value in plain.items():
        if value.dtype.hasobject:
            raise InputError(f"{name} holds Python objects, which are not saved")
    return replace_file(path, lambda file: np.savez(file, **plain))  # type: ignore[arg-type]


def checked_archive(stream: IO[bytes]) -> IO[bytes]:
    """Return an .npz file; a TooLargeError where the arrays that it claims exceed the memory."""
    with zipfile.ZipFile(stream) as archive:
        require_memory(sum(member.file_size for member in archive.infolist()), "reading its arrays")
    stream.seek(0)
    return stream


def read_archive(stream: IO[bytes]) -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file."""
    with np.load(checked_archive(stream), allow_pickle=False) as file:
        arrays = dict(file)
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("it holds other things than arrays")
    return arrays


def load_arrays(path: Any, what: str, name: str = "path") -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file; raise an InputError that names the file for others."""
    return read_file(read_archive, path, name, f"is no {what}")


def load_array(path: Any, name: str) -> NDArray[Any]:
    """Read the array of an .npy file; raise an InputError that names the file for others."""
    return read_file(partial(npy.read_array, allow_pickle=False), path, name, "is no .npy file")


def read_file(read: Callable[[IO[bytes]], Result], path: Any, name: str, otherwise: str) -> Result:
    """Return what a reader makes of a file; raise an InputError that says what else it is."""
    with opened(path, name, otherwise) as stream:
        try:
            return read(stream)
        except TooLargeError as error:
            raise TooLargeError(f"{name}: {path}: {error}") from error
        except Exception as error:  # damaged files make readers raise errors of any class
            reason = str(error) or type(error).__name__
            raise InputError(f"{name}: {path} {otherwise}: {reason}") from error


# The entry of a safetensors file's metadata that holds the JSON text.
METADATA = "headfit"

# The arrays that a safetensors file keeps in the dtype of the fit, or of the maps.
NARROWED = ("Q", "K", "P_q", "P_k", "W_Q_P_q", "W_K_P_k")

FORMATS = (".npz", ".safetensors")

Arrays = dict[str, NDArray[Any]]


def safetensors_package() -> Any:
    """Return the package, or raise an ImportError that says how to install it."""
    missing = "safetensors files need a package: pip install 'headfit[safetensors]'"
    return optional("safetensors", ImportError(missing))


def with_suffix(path: Any, name: str, suffixes: Sequence[str] = FORMATS) -> Path:
    """Return the path of a file whose name ends in one of these."""
    file = Path(as_path(path, name))
    if file.suffix not in suffixes:
        raise InputError(f"{name} must end in {' or '.join(suffixes)}; got {os.fspath(path)}")
    return file


def write_head(path: Any, arrays: Arrays, about: str, dtype: str) -> Path:
    """Write the arrays and the text of a fit in this dtype, in the format of the suffix."""
    target = with_suffix(path, "path")
    if target.suffix == ".npz":
        return save_arrays(target, {**arrays, "about": np.array(about)})
    safetensors_package()
    from safetensors.numpy import save

    stored = {}
    for name, array in arrays.items():
        if name in NARROWED and dtype in NARROW:
            narrow = array.astype(narrow_dtype(dtype))
            if not np.array_equal(narrow.astype(np.float32), array):
                raise InputError(f"{name} must hold numbers of {dtype}, the dtype of the fit")
            array = narrow
        stored[name] = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    raw = save(stored, {METADATA: about})
    return replace_file(target, lambda file: file.write(raw))
