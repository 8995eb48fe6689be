"""What each command does, from its parsed arguments to its exit status."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import scipy.io
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import bounds, patterns
from headfit._attention.module import SelfAttention
from headfit._base.configuration import show_config
from headfit._base.files import file_size, opened, replace_file
from headfit._base.machine import require_memory
from headfit._base.sparse import load_matrix
from headfit._base.stored_arrays import load_array, load_arrays
from headfit._base.tolerances import Tolerances
from headfit._cli import text
from headfit._cli.shared import given, option
from headfit._cli.streams import shown
from headfit._fit.fit import fit as find
from headfit._fit.method import Method
from headfit._fit.registry import METHODS
from headfit._fit.result import Fit
from headfit._fit.storage import read_fit
from headfit._target.append_columns import exempt_from
from headfit._target.certify import certify as judge
from headfit._target.heavy import heavy_notes
from headfit._target.target import Target
from headfit.errors import InputError


def _status(holds: bool) -> int:
    return 0 if holds else 1


DEMO_PICTURE = Path("headfit-demo.png")
"""The picture of a demo for which no name is given."""


def demo(arguments: Any) -> int:
    """Run `headfit demo`."""
    from headfit._cli.demo import run_demo

    if arguments.no_picture and arguments.out is not None:
        raise InputError("--out must not be given beside --no-picture")
    path = arguments.out or DEMO_PICTURE
    if arguments.out is None and not arguments.no_picture:
        arguments.streams.check_free(path)
    with text.progress(arguments.progress) as say:
        found = run_demo(rng=arguments.seed, progress=say, num_threads=arguments.num_threads)
        picture, missing = None, None
        if not arguments.no_picture:
            say("the picture")
            try:
                arguments.streams.write(path, found.save_picture)
                picture = path
            except ImportError as error:
                missing = str(error)
    if arguments.json:
        text.emit({**found.to_dict(), "picture": None if picture is None else str(picture)})
    else:
        print(text.demo_table(found))
        if picture is not None:
            print(f"\npicture: {shown(picture)}")
        elif missing is not None:
            print(f"\nno picture: {missing}")
    return _status(found.holds)


def pattern(arguments: Any) -> int:
    """Run `headfit pattern KIND`."""
    values = {name: getattr(arguments, name) for name in arguments.names}
    files = arguments.streams
    if arguments.kind == "knn":
        values["points"] = _points(files.path(values["points"]))
    elif arguments.kind == "from_graph":
        values["graph"] = load_matrix(files.path(values["graph"]))
    elif arguments.kind == "from_mask":
        values["mask"] = _mask(files.path(values["mask"]))
    elif arguments.kind == "induction":
        path = values["tokens"] and files.path(values["tokens"])
        values["tokens"] = _tokens(path, values.pop("text"), values.pop("by"))
    make = getattr(patterns, arguments.kind)
    A = make(**values, weights=arguments.weights, gamma=arguments.gamma, rng=arguments.seed)
    target = Target(A)
    files.write(arguments.output, lambda path: _save_matrix(path, A))
    if arguments.json:
        about = {"kind": arguments.kind, "seed": arguments.seed, "file": str(arguments.output)}
        text.emit({**about, **target.to_dict()})
    else:
        print(f"{arguments.output}: {arguments.kind}, {text.target_line(target)}")
    return 0


def _save_matrix(path: Path, A: Any) -> None:
    if path.suffix == ".mtx":
        replace_file(path, lambda file: scipy.io.mmwrite(file, A))
    else:
        replace_file(path, lambda file: sp.save_npz(file, A))


def _points(path: Path) -> NDArray[Any]:
    return load_array(path, ".npy file of numbers", "points")


def _mask(path: Path) -> Any:
    return load_array(path, ".npy file", "mask") if path.suffix == ".npy" else load_matrix(path)


def _tokens(path: Path | None, given: str | None, by: str) -> list[str]:
    if (path is None) == (given is None):
        raise InputError("induction takes a text file or --text, one of them")
    if path is not None:
        with opened(path, "tokens", "is no text") as file:
            require_memory(20 * file_size(file), f"tokens: {path}")
            raw = file.read()
        try:
            given = raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(f"tokens: {path} is no UTF-8 text: {error}") from error
    assert given is not None
    return given.split() if by == "word" else list(given)


def _module(path: Path) -> SelfAttention:
    if path.suffix == ".safetensors":
        return read_fit(path, "module").module
    arrays = load_arrays(path, "module file", "module")
    if "about" in arrays:  # a saved head has its module in it
        return read_fit(path, "module").module
    for name in ("W_Q", "W_K"):
        if name not in arrays:
            raise InputError(
                f"module: {path} must hold W_Q and W_K; it holds {', '.join(arrays) or '-'}"
            )
    scale = arrays.get("scale")
    if scale is not None and (scale.size != 1 or scale.dtype.kind not in "fiu"):
        raise InputError(f"module: {path} must hold one number as scale; got shape {scale.shape}")
    return SelfAttention(
        arrays["W_Q"], arrays["W_K"], None if scale is None else float(scale.item())
    )


OF_METHODS = ("effort", "reheats", "stages", "max_norm", "keys", "form", "sketch", "factor")
"""The options of single methods, by the names that their constructors give them."""


def _method(arguments: Any) -> Method:
    """Return the method that the arguments ask for, or refuse an option that it does not have."""
    kind: Any = METHODS[arguments.method]
    known = {field.name for field in dataclasses.fields(kind)}
    asked = given(arguments, *OF_METHODS)
    for name in asked:
        if name not in known:
            raise InputError(f"{option(name)} is no option of --method {arguments.method}")
    method: Method = kind(**asked)
    return method


TOLERANCES = tuple(field.name for field in dataclasses.fields(Tolerances))
"""The arguments that are tolerances, by name."""


def asked_tolerances(arguments: Any, otherwise: Tolerances) -> Tolerances:
    """Return the tolerances of the arguments; those that are not given come from `otherwise`."""
    return dataclasses.replace(otherwise, **given(arguments, *TOLERANCES))


def fit(arguments: Any) -> int:
    """Run `headfit fit`."""
    method, tolerances = _method(arguments), asked_tolerances(arguments, Tolerances())
    files = arguments.streams
    target = Target(
        files.path(arguments.target), mask=arguments.mask, normalize=arguments.normalize
    )
    module = None if arguments.module is None else _module(files.path(arguments.module))
    size = module.dim if module is not None else arguments.dim
    for note in heavy_notes(target, exempt_from(arguments.exempt_columns, target)):
        print(f"headfit: {note}", file=sys.stderr)
    with text.progress(arguments.progress) as say:
        say(f"fitting n = {target.n}, " + ("searching dim" if size is None else f"dim = {size}"))
        head = find(
            target,
            arguments.dim,
            method=method,
            module=module,
            dtype=arguments.dtype,
            tolerances=tolerances,
            time_limit=arguments.time_limit,
            exempt_columns=arguments.exempt_columns,
            kernel=arguments.kernel,
            rng=arguments.seed,
            num_threads=arguments.num_threads,
        )
        say(f"writing {arguments.output}")
        files.write(arguments.output, head.save)
    if arguments.json:
        text.emit({"file": str(arguments.output), **head.to_dict()})
    else:
        print(head.certificate)
        print(f"{arguments.output}: {text.head_line(head)}")
        if head.stopped != "certified":
            print(f"{head.stopped}: {head.advice}")
    return _status(head.certificate.holds)


def certify(arguments: Any) -> int:
    """Run `headfit certify`."""
    files = arguments.streams
    head = read_fit(files.path(arguments.head), "head")
    target = Target(files.path(arguments.target), mask=head.mask, normalize=arguments.normalize)
    with text.progress(arguments.progress) as say:
        say(f"certifying {target.n} x {target.n} entries")
        certificate = judge(
            target,
            head.attention,
            tolerances=asked_tolerances(arguments, head.tolerances),
            kernel=arguments.kernel or head.certificate.kernel,
            num_threads=arguments.num_threads,
        )
    if arguments.json:
        text.emit({"dim": head.dim, **certificate.to_dict()})
    else:
        print(certificate)
    return _status(certificate.holds)


def info(arguments: Any) -> int:
    """Run `headfit info`."""
    if arguments.system:
        return _system(arguments)
    found = target_or_head(arguments.streams.path(arguments.file), arguments.normalize)
    if isinstance(found, Fit):
        if arguments.json:
            text.emit({"file": str(arguments.file), "kind": "head", **found.to_dict()})
        else:
            print(f"{arguments.file}: {text.head_line(found)}")
            print(f"module: {found.module}")
            print(f"as recorded, not judged anew:\n{found.certificate}")
        return 0
    asked = Tolerances()
    proved = bounds.projection_dim(found.n, found.per_row, found.gamma, tolerances=asked)
    if arguments.json:
        figures = {"file": str(arguments.file), "kind": "target", **found.to_dict()}
        text.emit({**figures, "proved_dim": proved})
    else:
        print(f"{arguments.file}: target, {text.target_line(found)}")
        words = f"leak {asked.leak:g}, distortion {asked.distortion:g}"
        print(f"size proved to suffice for {words}: {proved}")
    return 0


def _system(arguments: Any) -> int:
    if arguments.normalize:
        raise InputError("--normalize must not be given with --system: there is no target")
    found = show_config()
    if arguments.json:
        text.emit(vars(found))
    else:
        print(found)
    return 0


def target_or_head(path: Path, normalize: bool) -> Target | Fit:
    """Read a file that is a target or a saved head; only a target can be normalized."""
    is_head = path.suffix == ".safetensors"
    if path.suffix == ".npz":
        arrays = load_arrays(path, "target or head", "file")
        is_head = "about" in arrays
        if not is_head and ("Q" in arrays or "W_Q" in arrays):
            raise InputError(
                f"file: {path} is neither a target nor a saved head: {', '.join(arrays)}"
            )
    if not is_head:
        return Target(path, normalize=normalize)
    if normalize:
        raise InputError(f"--normalize is for a target; {path} is a saved head")
    return read_fit(path, "file")
