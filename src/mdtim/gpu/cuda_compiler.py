"""CUDA kernels from source: compiled where they run, by the compiler that comes with PyTorch.

NVIDIA's run-time compiler (NVRTC) and the driver are C libraries, called as such: no toolkit and
no C++ compiler is needed. Where either is missing nothing here can run, and nobody needs it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from mdtim.gpu.triton_compiler import on_device_of

_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

logger = logging.getLogger(__name__)


class TensorMap:
    """A matrix of halves for the copy engine of a Hopper GPU, which moves boxes of it.

    In shared memory the 16-byte pieces of a box's rows are permuted, as tensor cores read them.

    Parameters
    ----------
    tensor : contiguous, bfloat16 or float16, on a multiple of 16 bytes
    rows, columns : of a box; 64 columns are the 128 bytes that are permuted within
    """

    _BYTES, _ALIGNMENT = 128, 64
    _TYPES: ClassVar = {torch.float16: 6, torch.bfloat16: 9}
    _PERMUTED_128_BYTES, _FETCH_256_BYTES = 3, 3

    def __init__(self, tensor: Tensor, rows: int, columns: int = 64) -> None:
        height, width = tensor.shape
        self._buffer = ctypes.create_string_buffer(self._BYTES + self._ALIGNMENT)
        self.address = -(-ctypes.addressof(self._buffer) // self._ALIGNMENT) * self._ALIGNMENT
        _call_driver(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(self.address),
            self._TYPES[tensor.dtype],
            2,
            ctypes.c_void_p(tensor.data_ptr()),
            (ctypes.c_uint64 * 2)(width, height),
            (ctypes.c_uint64 * 1)(width * tensor.itemsize),
            (ctypes.c_uint32 * 2)(columns, rows),
            (ctypes.c_uint32 * 2)(1, 1),
            *(0, self._PERMUTED_128_BYTES, self._FETCH_256_BYTES, 0),
        )


class Kernel:
    """A compiled kernel on one device."""

    def __init__(self, function: ctypes.c_void_p, threads: int, shared_bytes: int) -> None:
        self._function = function
        self._threads = threads
        self._shared_bytes = shared_bytes

    def launch(self, num_programs: int, *arguments: Tensor | TensorMap | int | None) -> None:
        """Run on the current stream of the first tensor's device, with 32-bit integers."""
        (first,) = [argument for argument in arguments if isinstance(argument, Tensor)][:1]
        values: list[ctypes.c_int | ctypes.c_void_p] = []
        addresses = []
        for argument in arguments:
            if isinstance(argument, TensorMap):
                addresses.append(argument.address)
                continue
            if isinstance(argument, int):
                values.append(ctypes.c_int(argument))
            else:
                values.append(ctypes.c_void_p(None if argument is None else argument.data_ptr()))
            addresses.append(ctypes.addressof(values[-1]))
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        with on_device_of(first):
            stream = ctypes.c_void_p(torch.cuda.current_stream(first.device).cuda_stream)
            _call_driver(
                "cuLaunchKernel",
                self._function,
                *(num_programs, 1, 1),
                *(self._threads, 1, 1),
                self._shared_bytes,
                stream,
                pointers,
                None,
            )


def compile_kernel(
    file: str,
    name: str,
    constants: Mapping[str, int],
    device: torch.device,
    *,
    threads: int,
    shared_bytes: int,
    own_generation: bool = False,
) -> Kernel:
    """Compile a kernel of a source file of this package for a device.

    Parameters
    ----------
    constants : macros of the source
    threads : of a program
    shared_bytes : that a program asks for when it is launched
    own_generation : the source has instructions that later generations of GPUs do not have
    """
    major, minor = torch.cuda.get_device_capability(device)
    generation = f"{major}{minor}" + "a" * own_generation
    options = [f"--gpu-architecture=sm_{generation}", "--std=c++17"]
    options += [f"-D{constant}={value}" for constant, value in constants.items()]
    binary = _compile(file, options)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(device):
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()  # this thread then has the device's context
        _call_driver("cuModuleLoadData", ctypes.byref(module), binary)
        _call_driver("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        _call_driver("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
    return Kernel(function, threads, shared_bytes)


@functools.cache
def has_compiler() -> bool:
    """Whether kernels can be compiled here; before CUDA 12 not for the GPUs that they are for."""
    if torch.version.cuda is None or int(torch.version.cuda.split(".")[0]) < 12:
        return False
    try:
        _compiler(), _driver()
    except OSError as error:
        logger.info("no CUDA kernels from source: %s", error)
        return False
    return True


@functools.cache
def _compiler() -> ctypes.CDLL:
    """NVRTC of the CUDA version that PyTorch was built with."""
    assert torch.version.cuda is not None
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    # PyTorch's wheels have it in a package of its own; elsewhere the system knows where it is.
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in Path(folder).glob(f"*/lib/{name}"):
            # It looks for its other half by name, and not beside itself.
            for builtins in path.parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    return ctypes.CDLL(name)


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call_driver(function: str, *arguments: object) -> None:
    status = getattr(_driver(), function)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{function}: {(text.value or b'unknown error').decode()}")


def _read(file: str) -> bytes:
    return resources.files("mdtim").joinpath(file).read_bytes()


def _compile(file: str, options: list[str]) -> bytes:
    """Machine code of a source file of this package, which may include others of it."""
    compiler, source = _compiler(), _read(file)
    included = re.findall(rb'^#include "(.+)"', source, re.MULTILINE)
    texts = [_read(name.decode()) for name in included]

    def call(function: str, *arguments: object) -> None:
        status = getattr(compiler, function)(*arguments)
        if status:
            compiler.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{function}: {compiler.nvrtcGetErrorString(status).decode()}")

    def read(what: str) -> bytes:
        size = ctypes.c_size_t()
        call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    program = ctypes.c_void_p()
    call(
        "nvrtcCreateProgram",
        *(ctypes.byref(program), source, file.encode()),
        *(len(included), _strings(texts), _strings(included)),
    )
    try:
        words = _strings([option.encode() for option in options])
        if compiler.nvrtcCompileProgram(program, len(options), words):
            log = read("ProgramLog").rstrip(b"\0").decode()
            raise RuntimeError(f"{file} with {' '.join(options)} does not compile:\n{log}")
        return read("CUBIN")
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(program))


def _strings(texts: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*texts)
