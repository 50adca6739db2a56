"""CUDA sources compiled for a CPU, where every lane of a warp is a fiber: slow, but anywhere."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

import mdtim

_HERE = Path(__file__).parent / "emulated"
_PACKAGE = Path(mdtim.__file__).parent


class EmulatedKernel:
    """A kernel of a source file of the package, launched as a compiled one is on a GPU."""

    def __init__(
        self, file: str, name: str, constants: Mapping[str, int], threads: int, folder: Path
    ) -> None:
        self._threads = threads
        unit = f'''
            #include "warps.h"
            #include "{_PACKAGE / file}"
            uint4 shared[1 << 14];
            extern "C" void launch(int programs, int threads, void** arguments) {{
              run({name}, programs, threads, arguments);
            }}
        '''
        macros = [f"-D{constant}={value}" for constant, value in constants.items()]
        digest = hashlib.sha256((unit + " ".join(macros)).encode()).hexdigest()[:16]
        library = folder / f"{name}-{digest}.so"
        subprocess.run(
            [
                *("g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-x", "c++", "-"),
                *(f"-iquote{_HERE}", f"-iquote{_PACKAGE}", *macros, "-o", str(library)),
            ],
            input=unit,
            text=True,
            check=True,
        )
        self._library = ctypes.CDLL(str(library))

    def launch(self, num_programs: int, *arguments: Tensor | int | None) -> None:
        values = [
            ctypes.c_int(argument)
            if isinstance(argument, int)
            else ctypes.c_void_p(None if argument is None else argument.data_ptr())
            for argument in arguments
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._library.launch(num_programs, self._threads, addresses)
