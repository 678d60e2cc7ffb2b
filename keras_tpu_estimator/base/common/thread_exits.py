"""The end of threads that return to an exiting Python."""

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Iterator

# See elf(5). Each relocation of a table has an address, a symbol's number in 32 bits
# after a kind in 32 bits, and an addend.
_TABLES = {7: 8, 23: 2}  # DT_RELA with DT_RELASZ, and DT_JMPREL with DT_PLTRELSZ.
_STRING_TABLE, _SYMBOL_TABLE = 5, 6
_RELOCATION_BYTES = _SYMBOL_BYTES = 24
_PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class _Entry(ctypes.Structure):
    """An entry of the dynamic section of a loaded file."""

    _fields_ = (("tag", ctypes.c_int64), ("value", ctypes.c_uint64))


class _LoadedFile(ctypes.Structure):
    """The `struct link_map` of a program or shared library."""


_LoadedFile._fields_ = [
    ("address", ctypes.c_uint64),
    ("name", ctypes.c_char_p),
    ("section", ctypes.POINTER(_Entry)),
    ("next", ctypes.POINTER(_LoadedFile)),
]


def block_returning_threads() -> None:
    """Blocks the threads that return from C++ to an exiting Python.

    Python ends such a thread by `pthread_exit`, which unwinds its stack. The first C++
    function that does not allow this aborts the process. Here, Python's calls of
    `pthread_exit` become those of `pause`, so that the process exits with its own code,
    as from Python 3.14 on. Calls of other libraries stay the same.
    """
    # Only glibc's handle of a library is the address of its `link_map`.
    is_glibc = platform.libc_ver()[0] == "glibc" and sys.maxsize > 2**32
    if not is_glibc or sys.platform != "linux" or sys.version_info >= (3, 14):
        return
    pause = _address_of("pause")
    for slot in _slots_of("pthread_exit"):
        page = slot - slot % mmap.PAGESIZE
        if not _library().mprotect(
            ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _PROT_READ_WRITE
        ):
            ctypes.c_uint64.from_address(slot).value = pause


def _slots_of(function: str) -> Iterator[int]:
    """Yields the addresses of the pointers by which Python calls a function of C."""
    handle = ctypes.c_void_p(_library()._handle)
    loaded = ctypes.cast(handle, ctypes.POINTER(_LoadedFile))
    while loaded:
        file = loaded.contents
        # The program has no name.
        name = os.path.basename(os.fsdecode(file.name))
        if not name or name.startswith("libpython"):
            yield from _slots_in(file, function.encode())
        loaded = file.next


def _slots_in(file: _LoadedFile, function: bytes) -> Iterator[int]:
    section = {}
    for entry in file.section:
        if not entry.tag:
            break
        section[entry.tag] = entry.value
    for table, size in _TABLES.items():
        for at in range(0, section.get(size, 0), _RELOCATION_BYTES):
            offset, kind, _ = (ctypes.c_uint64 * 3).from_address(section[table] + at)
            symbol = section[_SYMBOL_TABLE] + (kind >> 32) * _SYMBOL_BYTES
            text = section[_STRING_TABLE] + ctypes.c_uint32.from_address(symbol).value
            if ctypes.string_at(text) == function:
                yield file.address + offset


def _library() -> ctypes.CDLL:
    """Returns the symbols of the program and its libraries."""
    return ctypes.CDLL(None)


def _address_of(function: str) -> int:
    return ctypes.cast(_library()[function], ctypes.c_void_p).value or 0
