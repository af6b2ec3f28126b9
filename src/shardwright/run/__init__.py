"""Execute Programs.

| file | what it holds |
|---|---|
| `engine` | the `Engine` protocol and `NumpyEngine`, which has one device |
| `virtual` | `VirtualEngine`: N devices in this process; compiles and runs Programs, counts what it does |
| `lifetimes` | last uses of values, and inputs that a caller donates |
| `calibrate` | measures this machine and writes it as TOML |
| `arrays` | the array operations behind collectives, for NumPy; scatter and assemble on the host |
| `torch/` | PyTorch: the virtual mesh on tensors, programs emitted as FX modules, real processes; imported on its own |

To extend: another framework brings an `engine.Arrays` and its frontend's ``prepare``; another way to run brings an
engine with the same collectives.
"""

from .arrays import NumpyArrays, assemble, scatter
from .engine import Engine, NumpyEngine
from .virtual import CompiledProgram, Executed, VirtualEngine

__all__ = [
    "CompiledProgram",
    "Engine",
    "Executed",
    "NumpyArrays",
    "NumpyEngine",
    "VirtualEngine",
    "assemble",
    "scatter",
]
