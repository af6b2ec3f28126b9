"""The verbs that only look: ``rules``, ``presets``, ``doctor``; and ``calibrate``, which measures this machine."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..errors import SpecError, near_misses
from .models import known_models
from .output import JSON, OUT, for_file, tell, working


@click.command()
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default=Path("hardware.toml"), show_default=True, callback=for_file,
    metavar="FILE",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer sizes.")
@JSON
def calibrate(out: Path, quick: bool, json_form: bool) -> None:
    """Measure this machine; with torchrun, its collectives, too.  The file goes to --hardware."""
    from ..run.calibrate import calibrate as measure

    with working("measuring ..."):
        measure(out, quick)
    tell(f"written to {out}", {"file": str(out)}, json_form, None)


@click.command()
@click.argument("name", required=False)
@click.option("--models", is_flag=True, help="Models that are planned by name (hf:NAME), not machines.")
@OUT
@JSON
def presets(name: str | None, models: bool, out: Path | None, json_form: bool) -> None:
    """Machines that are known by name, with where their figures come from."""
    known = known_models() if models else _machines()
    if name is not None and name not in known:
        raise SpecError(f"no {'model' if models else 'preset'} is called {name!r}", rows=[("known", ", ".join(known))],
                        help=near_misses(name, known))  # fmt: skip
    chosen = known if name is None else {name: known[name]}
    lines = []
    for each, about in chosen.items():
        facts = {key: value for key, value in about.items() if key not in ("source", "config")}
        facts |= about.get("config", {})
        lines += [each, *(f"  {key:<24} {value}" for key, value in facts.items()), f"  from {about['source']}"]
    tell("\n".join(lines), chosen, json_form, out)


def _machines() -> dict[str, dict[str, Any]]:
    from ..cost.files import preset_names
    from ..cost.hardware import hardware_of

    found = {}
    for name in (*preset_names(), "virtual"):
        machine = hardware_of(name)
        found[name] = {
            "name": machine.name, "memory_gb": machine.memory / 1e9, "bandwidth_gbs": machine.bandwidth / 1e9,
            **{f"tflops {dtype}": rate / 1e12 for dtype, rate in machine.flops if dtype in ("f32", "bf16")},
            "devices in a node": machine.node or 0, "source": machine.source,
        }  # fmt: skip
    return found


@click.command()
@click.argument("op", required=False)
@click.option("--shapes", metavar="SHAPES", help='Operands of a call, such as "8 16, 16 4"; results after "->".')
@OUT
@JSON
def rules(op: str | None, shapes: str | None, out: Path | None, json_form: bool) -> None:
    """The sharding rule of an op, and where it stands: shardwright rules matmul

    Without OP: the names of all ops that are written down; the rules of PyTorch's operators are made when asked for.
    """
    from ..rules.registry import lookup, records
    from ..rules.registry import sharding_rule as bound

    if op is None:
        names = [record.name for record in records()]
        tell("\n".join(names), names, json_form, out)
        return
    record = lookup(op)
    about: dict[str, Any] = {
        "op": op, "rule": record.rule if isinstance(record.rule, str) else "depends on the call",
        "says": record.doc or None, "passes pending": [str(transfer) for transfer in record.transfers] or None,
        "same as": "another op, by translation" if record.same_as is not None else None,
        "spreads": record.flow.value, "cost": record.cost, "from": record.origin or "the project's own book",
        "stands": place_of_rule(op, record.rule),
    }  # fmt: skip
    if shapes is not None:
        given, _, made = shapes.partition("->")
        operands = [_shape(text) for text in given.split(",")]
        results = [_shape(text) for text in made.split(",")] if made else _results(record, operands)
        about["rule of this call"] = str(bound(op, operands, results))
    shown = {key: value for key, value in about.items() if value is not None}
    lines = [f"{key:<18} {'; '.join(value) if isinstance(value, list) else value}" for key, value in shown.items()]
    if not isinstance(record.rule, str) and shapes is None:
        lines.append('help               --shapes "8 16, 16 4 -> 8 4" shows the rule of a call')
    tell("\n".join(lines), shown, json_form, out)


def _shape(text: str) -> tuple[int, ...]:
    words = text.split()
    if not all(word.isdigit() for word in words):
        raise SpecError(f"--shapes has {text.strip()!r}", help='write sizes with spaces: --shapes "8 16, 16 4 -> 8 4"')
    return tuple(map(int, words))


def _results(record: Any, operands: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Of a rule that is a text, from its factors."""
    from ..spec.rule import RulePattern

    if not isinstance(record.rule, str):
        raise SpecError("--shapes has no results", help='write them after an arrow: --shapes "8 16, 16 4 -> 8 4"')
    found = RulePattern.parse(record.rule).bind(operands, **record.sizes)
    return [found.shape_of(mapped) for mapped in found.results]


def place_of_rule(op: str, source: Any) -> str | None:
    """File and line where a rule is written."""
    code = getattr(source, "__code__", None)
    root = Path(__file__).parents[1]
    if code is not None:
        file = Path(code.co_filename)
        shown = file.relative_to(root.parent) if file.is_relative_to(root.parent) else file
        return f"{shown}:{code.co_firstlineno}"
    for folder in ("rules", "frontends"):
        for path in sorted((root / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if f'"{op}"' in line:
                    return f"{path.relative_to(root.parent)}:{number}"
    return None


# -- doctor ---------------------------------------------------------------------------------------------------

_NEEDED = {"numpy": "everything", "click": "this command", "highspy": "one of the solvers", "pyyaml": "YAML reports",
           "jinja2": "reports for a browser", "rich": "colour and progress"}  # fmt: skip
_OPTIONAL = {"torch": "PyTorch programs (pip install 'shardwright[torch]')",
             "transformers": "models by name (pip install 'shardwright[models]')",
             "expecttest": "discovery with PyTorch's own samples (pip install 'shardwright[discover]')"}  # fmt: skip


@click.command()
@OUT
@JSON
def doctor(out: Path | None, json_form: bool) -> None:
    """Versions, devices, what is missing and what that costs."""
    packages = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    missing = [f"{name}: without it {what} will not work" for name, what in {**_NEEDED, **_OPTIONAL}.items()
               if packages[name] is None]  # fmt: skip
    warnings = []
    devices: list[str] = []
    backends: list[str] = []
    if packages["torch"] is not None:
        try:
            devices, backends = _torch_devices()
        except Exception as error:  # a broken installation is what a doctor is asked about
            warnings.append(f"PyTorch cannot be imported: {type(error).__name__}: {error}")
        from ..frontends.versions import outside_tested

        told = outside_tested(packages["torch"])
        warnings += [told] if told else []
    plugins = [f"{p.name}: {p.value}" for group in ("shardwright.rules", "shardwright.operators")
               for p in entry_points(group=group)]  # fmt: skip
    record = {
        "shardwright": __version__, "python": platform.python_version(), "system": platform.platform(),
        "cores": os.cpu_count(), "packages": packages, "devices": devices, "backends": backends,
        "plugins": plugins, "missing": missing, "warnings": warnings,
    }  # fmt: skip
    lines = [
        f"shardwright {__version__}, Python {record['python']}, {record['system']}, {record['cores']} cores",
        *(f"  {name:<14} {found or 'not installed'}" for name, found in packages.items()),
        f"devices        {', '.join(devices) or 'the CPU'}",
        f"backends       {', '.join(backends) or 'the virtual mesh alone'}",
        *(f"plug-in rules  {plugin}" for plugin in plugins),
        *(f"missing        {text}" for text in missing), *(f"warning        {text}" for text in warnings),
    ]  # fmt: skip
    if not missing and not warnings:
        lines.append("all is there")
    tell("\n".join(lines), record, json_form, out)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        module = sys.modules.get(name)
        return None if module is None else str(getattr(module, "__version__", "?"))


def _torch_devices() -> tuple[list[str], list[str]]:
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    devices = [
        f"{torch.cuda.get_device_name(i)} ({torch.cuda.get_device_properties(i).total_memory / 2**30:.0f} GiB)"
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    known = {"gloo": "is_gloo_available", "nccl": "is_nccl_available", "mpi": "is_mpi_available"}
    there = distributed.is_available()
    return devices, [name for name, call in known.items() if there and getattr(distributed, call, bool)()]


COMMANDS = (calibrate, presets, rules, doctor)
