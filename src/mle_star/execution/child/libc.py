"""Functions of the C library, called without `ctypes`, whose start takes half as long as an interpreter's."""

from __future__ import annotations

import _ctypes


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # names only, at run time it takes none
    _type_ = "i"


class _Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "L"


class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_LIBRARY = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program


def call(name: str, *words: int | bytes | None) -> int:
    """What the function `name` answers, as an `int`; raises `OSError` where there is no such function."""
    function = _Function(_ctypes.dlsym(_LIBRARY, name))
    return int(function(*(_Word(word) if isinstance(word, int) else word for word in words)))


def last_error() -> int:
    """The number of the error that the last call ended with."""
    return _ctypes.get_errno()


class Buffer:
    """Bytes that stay at one address for as long as this object lives."""

    def __init__(self, content: bytes) -> None:
        self._kept = (_Byte * len(content)).from_buffer_copy(content)
        self.address = _ctypes.addressof(self._kept)
