"""EXECUTE Programs.

| file | what it holds |
|---|---|
| `engine` | `Engine`: the protocol that every engine follows; `engine_for`: which one, by listing |
| `runner` | `Runner`: a Program with its source on an engine, compiled once |
| `virtual` | `VirtualEngine`: N devices in this process; compiles and runs Programs, counts what it does |
| `numpy` | `NumpyEngine`, which has one device |
| `lifetimes` | what a run may forget, and when; inputs that a caller donates |
| `calibrate` | measures this machine and writes it as TOML |
| `torch/` | PyTorch: programs emitted as FX modules, real processes; imported on its own |

To extend: another way to run is a module here with ``make(mesh, framework)``, which returns an `Engine`; another
framework brings its `Framework` in its frontend.
"""

from ..frontends.numpy.arrays import NumpyArrays
from .engine import Engine, Executed, engine_for
from .numpy import NumpyEngine
from .runner import Runner
from .virtual import CompiledProgram, VirtualEngine, assemble, pended, scatter

__all__ = [
    "CompiledProgram",
    "Engine",
    "Executed",
    "NumpyArrays",
    "NumpyEngine",
    "Runner",
    "VirtualEngine",
    "assemble",
    "engine_for",
    "pended",
    "scatter",
]
