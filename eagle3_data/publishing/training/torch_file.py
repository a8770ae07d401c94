"""Write tensors as `torch.load` reads them (weights_only too), without torch.

Goes in: names and numpy arrays. Comes out: a .pt file: a zip of a pickle, protocol 2, that rebuilds each tensor over a
storage by a persistent id, and the raw little-endian storages beside it (the format of torch ≥ 1.6; see
torch/serialization.py, `_save`).
"""

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eagle3_data.errors import UsageError
from eagle3_data.run_folder import atomic_file

_STORAGES: Final = {"int64": "LongStorage", "int32": "IntStorage", "bool": "BoolStorage", "float32": "FloatStorage"}
_ALIGNMENT: Final = 64


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode("ascii")


def _text(value: str) -> bytes:
    data = value.encode()
    return pickle.BINUNICODE + len(data).to_bytes(4, "little") + data


def _int(value: int) -> bytes:
    return pickle.BININT + value.to_bytes(4, "little", signed=True)


def _tensor(key: str, array: NDArray[Any]) -> bytes:
    """Return the opcodes that push torch._utils._rebuild_tensor_v2(storage, 0, (n,), (1,), False, OrderedDict())."""
    storage = (
        pickle.MARK
        + _text("storage")
        + _global("torch", _STORAGES[array.dtype.name])
        + _text(key)
        + _text("cpu")
        + _int(array.size)
        + pickle.TUPLE
        + pickle.BINPERSID
    )
    empty = _global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = (
        pickle.MARK
        + storage
        + _int(0)
        + _int(array.size)
        + pickle.TUPLE1
        + _int(1)
        + pickle.TUPLE1
        + pickle.NEWFALSE
        + empty
        + pickle.TUPLE
    )
    return _global("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.REDUCE


def write_torch(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write one-dimensional arrays as a dictionary of tensors, whole or not at all.

    Args:
        path: the .pt file.
        tensors: name -> int64, int32, bool or float32 (n,).

    Raises:
        UsageError: an array has another shape or type.
        DiskFull, MachineError: the file cannot be written.
    """
    body = pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK
    for index, (name, array) in enumerate(tensors.items()):
        if array.ndim != 1 or array.dtype.name not in _STORAGES:
            raise UsageError(
                f"{path}: {name} is {array.dtype} of shape {array.shape}; one-dimensional integers wanted"
            )
        body += _text(name) + _tensor(str(index), array)
    body += pickle.SETITEMS + pickle.STOP
    buffer = io.BytesIO()
    root = path.stem
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, buffer, f"{root}/data.pkl", body)
        _add(archive, buffer, f"{root}/byteorder", b"little")
        for index, array in enumerate(tensors.values()):
            data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            _add(archive, buffer, f"{root}/data/{index}", data)
        _add(archive, buffer, f"{root}/version", b"3\n")
    with atomic_file(path) as file:
        file.write(buffer.getvalue())


def _add(archive: zipfile.ZipFile, buffer: io.BytesIO, name: str, data: bytes) -> None:
    """Add an entry whose data start at a multiple of 64 bytes, as torch wants storages; the date is fixed."""
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    start = buffer.tell() + 30 + len(name.encode())
    padding = -(start + 4) % _ALIGNMENT
    # an extra field of torch's own kind ("FB"), four bytes of header and the padding
    entry.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    archive.writestr(entry, data)
