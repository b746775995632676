"""find_native: the extension module, or why it cannot be used. The only place that imports it."""

from __future__ import annotations

from types import ModuleType

INTERFACE = 2  # what these sources call; engine/module.cpp has the same number
_NOT_BUILT = "it was not built when Millstream was installed (that takes a C++20 compiler, on x86-64)"
_OTHER_VERSION = "it was built from another version of Millstream (install Millstream again to build it)"
_NO_INSTRUCTIONS = "this CPU has neither AVX2 nor AVX-512 VNNI"


def find_native() -> ModuleType | str:
    """Return the extension module `_native`, or a clause that says why it is of no use here."""
    try:
        import millstream.execution.native._native as _native
    except ModuleNotFoundError:
        return _NOT_BUILT
    except ImportError as error:
        return f"it cannot be loaded: {error}"
    if vars(_native).get("INTERFACE") != INTERFACE:  # what was built before there were numbers has none
        return _OTHER_VERSION
    return _native if _native.instruction_set() is not None else _NO_INSTRUCTIONS


def native_module() -> ModuleType:
    """Return the extension module where `find_native` has found it.

    Raises:
        ImportError: it cannot be used.
    """
    found = find_native()
    if isinstance(found, str):
        raise ImportError(f"the native executor cannot run: {found}")
    return found
