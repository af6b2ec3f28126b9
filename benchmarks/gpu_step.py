"""Whole AdamW steps on one GPU: ours beside plain PyTorch, and one rank of 8-device plans beside its prediction.

    PYTHONPATH=src python benchmarks/gpu_step.py --make-plans plans            # where highspy is
    PYTHONPATH=src python benchmarks/gpu_step.py --plans plans --out steps.jsonl   # where the GPU is
    PYTHONPATH=src python benchmarks/gpu_step.py --report steps.jsonl          # the tables again
    PYTHONPATH=src python benchmarks/gpu_step.py --tiny --device cpu           # does it run

Models of `transformers`, bf16.  **steps**: one device; columns `eager` and `compiled` (the model by `torch.compile`),
each with fused AdamW; `emitted`, what `train_step` runs, `auto` and `graph`, the same with that word for ``compile=``.
**ranks**: rank 0 of plans for 8 devices, `emitted` and `emitted-compiled`: predicted compute and peak memory beside
measured.  Memory is that of a step with local ops in place of collectives, time that of one where nothing is copied in
their place; from a compiled step, which keeps them, the time of those that stand for gathers is taken off.  All columns
of a model run by turns; figures are medians.

What fails costs only itself: the error is a line of the output.  Every result is written to ``--out`` at once, as JSON.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_models import SIZES, Batch, loss_of, model_of
from gpu_running import MIB, Running, difference, gathers_time, inputs_of, show_where, synchronize, without_copies

import shardwright as sw
import shardwright.torch as swt
from shardwright.cost import RESIDENT, program_cost, program_memory
from shardwright.run.torch import TorchEngine, emit
from shardwright.run.torch.compiling import compile_module
from shardwright.run.torch.held import Held

PS_PER_MS = 10**9
MODELS = ("llama", "llama-cache", "gpt2", "qwen2", "vit")
STEP_COLUMNS = ("eager", "compiled", "emitted", "auto", "graph")
RANK_COLUMNS = ("emitted", "emitted-compiled")
COLUMNS = (*STEP_COLUMNS, "emitted-compiled")
SETTLED = 12
"""Calls after which a step has settled which form of its program runs."""
RECIPES = ("plan", "dp", "zero1", "zero3", "megatron", "fsdp+tp", "sequence")
FITTED = ("gpt2", "vit")
"""Models that constants may come from; the others are for judging."""
APART = 1.05
"""Plans whose times differ by less have no order."""
Row = dict[str, Any]


# -- time, memory, errors -------------------------------------------------------------------------------


def free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class OutOfTime(Exception):
    pass


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stops what takes longer: a compiler may."""

    def stop(*_: Any) -> None:
        raise OutOfTime(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' / '.join(lines[:3])}"[:400]


def by_turns(works: Mapping[str, Callable[[], Any]], device: str, seconds: float) -> tuple[dict[str, float], Row]:
    """Median milliseconds of each, one after the other, again and again; who fails on the way is left out."""
    times: dict[str, list[float]] = {name: [] for name in works}
    errors: Row = {}
    left = dict(works)

    def timed(work: Callable[[], Any], count: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            work()
        synchronize(device)
        return (time.perf_counter() - start) * 1000 / count

    counts = {}
    for name, work in works.items():
        try:
            once = min(timed(work, 1) for _ in range(3))
            counts[name] = max(1, min(20, round(100 / max(once, 1e-3)))) if device == "cuda" else 1
        except Exception as error:
            errors[name] = short(error)
            del left[name]
    began = time.perf_counter()
    for done in itertools.count():
        if done >= 3 and (time.perf_counter() - began > seconds or done >= 25):
            break
        for name in list(left):
            try:
                times[name].append(timed(left[name], counts[name]))
            except Exception as error:
                errors[name] = short(error)
                del left[name]
    return {name: statistics.median(times[name]) for name in left}, errors


@contextmanager
def peak(device: str, inputs: Iterable[Any], found: Row) -> Iterator[None]:
    """What is held at most inside: by PyTorch's allocator on a GPU, else storages."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        yield
        torch.cuda.synchronize()
        found |= {"held": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    else:
        with Held(inputs) as held:
            yield
        found["held"] = held.peak


# -- one device -----------------------------------------------------------------------------------------


def plain(model: Any, batch: Batch, compiled: bool) -> Callable[[], Any]:
    """A step as PyTorch users write it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model, dynamic=False) if compiled else model

    def step() -> Any:
        loss = forward(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def ours(model: Any, batch: Batch, told: argparse.Namespace, form: str | None, about: Row) -> Callable[[], Any]:
    """What `train_step` makes for one device, in this form."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = TorchEngine("d=1", device=told.device)
    step = swt.train_step(
        model, optimizer=optimizer, batch=batch, loss=loss_of, mesh="d=1", recipe="replicated", engine=engine,
        hardware=told.hardware, data="global", verify="off", compile=form,
    )  # fmt: skip
    cost = program_cost(step.program, step.plan.hardware, step.plan.graph)
    about["predicted"] = cost.compute / PS_PER_MS
    compiled = program_cost(step.program, step.plan.hardware.as_compiled(), step.plan.graph)
    about["predicted_compiled"] = compiled.compute / PS_PER_MS
    about["first"] = float(step(**batch))
    for _ in range(SETTLED if form else 0):
        step(**batch)
    if form:
        about.setdefault("forms", {})[form] = "; ".join(step.forms.values())
    return lambda: step(**batch)


def measure_steps(name: str, size: str, told: argparse.Namespace) -> Row:
    works: dict[str, Callable[[], Any]] = {}
    row: Row = {"part": "steps", "model": name, "size": size, "ms": {}, "errors": {}}
    row |= {"loss": {}, "held": {}, "start_s": {}}
    for column in (c for c in STEP_COLUMNS if c in told.columns):
        if column == "graph" and size == "large":
            continue  # for steps that are bound by launches
        free(told.device)
        began = time.perf_counter()
        before = torch.cuda.memory_allocated() if told.device == "cuda" else 0
        try:
            with at_most(told.compile_seconds) if column not in ("eager", "emitted") else nullcontext():
                model, batch = model_of(name, size, told.device)
                about: Row = {"forms": row.get("forms", {})}
                form = None if column == "emitted" else column
                plainly = column in ("eager", "compiled")
                work = plain(model, batch, column == "compiled") if plainly else ours(model, batch, told, form, about)
                first = float(work())  # the first call compiles
                row["loss"][column] = about.pop("first", first)
                row |= about
                works[column] = work
                found: Row = {}
                with peak(told.device, (), found):
                    work()
                row["held"][column] = found["held"] - before
        except Exception as error:
            row["errors"][column] = short(error)
        row["start_s"][column] = round(time.perf_counter() - began, 1)
    times, failed = by_turns(works, told.device, told.turn_seconds)
    row["ms"], row["errors"] = times, row["errors"] | failed
    return row


# -- one rank of eight ----------------------------------------------------------------------------------


def plan_of(name: str, size: str, recipe: str, told: argparse.Namespace) -> Any:
    """The plan: by recipe, or the planner's from its file, made here where there is none."""
    model, batch = model_of(name, size, "meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    about: dict[str, Any] = {"optimizer": optimizer, "loss": loss_of, "kwargs": batch, "verify": "off"}
    if recipe == "plan" and told.plans is not None:
        return sw.load_plan(told.plans / f"{name}-{size}.json", model, hardware=told.hardware, **about)
    recipes = {} if recipe == "plan" else {"recipe": recipe}
    return sw.plan(model, mesh=told.mesh, hardware=told.hardware, **about, **recipes)


def make_plans(told: argparse.Namespace) -> None:
    told.plans, folder = None, told.make_plans
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in itertools.product(told.models, told.rank_sizes):
        if name == "llama-cache":
            continue
        plan = plan_of(name, size, "plan", told)
        (folder / f"{name}-{size}.json").write_text(plan.to_json(), encoding="utf-8")
        print(f"{name}-{size}: {plan}", flush=True)


def measure_rank(name: str, size: str, recipe: str, told: argparse.Namespace) -> Row:
    row: Row = {"part": "ranks", "model": name, "size": size, "recipe": recipe, "ms": {}, "errors": {}}
    plan = plan_of(name, size, recipe, told)
    program = plan.program
    cost = program_cost(program, plan.hardware, plan.graph)
    row["predicted"], row["communication"] = cost.compute / PS_PER_MS, cost.communication / PS_PER_MS
    row["predicted_compiled"] = program_cost(program, plan.hardware.as_compiled(), plan.graph).compute / PS_PER_MS
    row["predicted_bytes"] = program_memory(program, RESIDENT)
    words = SIZES[size][name.removesuffix("-cache")][-1]
    if told.device == "cuda":
        torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")  # its library takes a workspace
    free(told.device)
    on_gpu = told.device == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    before_reserved = torch.cuda.memory_reserved() if on_gpu else 0

    def inputs() -> list[Any]:
        return inputs_of(plan, 0, words, told.device)

    works: dict[str, Callable[[], Any]] = {}

    def alone(**about: bool) -> Any:
        return emit(program, 0, device=told.device, stand_ins=True, **about)

    if "emitted" in told.columns:
        work = Running(program, inputs(), alone(taking=True).forward, taking=True)
        work()
        found: Row = {}
        with peak(told.device, work.inputs, found):
            work()
        row["held"] = found["held"] - before
        if "reserved" in found:
            row["reserved"] = found["reserved"] - before_reserved
        del work
        silent = without_copies(alone(taking=True), inputs(), told.device)
        works["emitted"] = Running(program, inputs(), silent.forward, taking=True)
    if "emitted-compiled" in told.columns and recipe in told.compile_recipes:
        try:
            with at_most(told.compile_seconds):
                began = time.perf_counter()
                written = alone(donated=True, fused=False)
                call = compile_module(written, program, inputs(), told.device)
                compiled = works["emitted-compiled"] = Running(program, inputs(), call, taking=True)
                compiled()
                row["start_s"] = round(time.perf_counter() - began, 1)
            row["gathers"] = gathers_time(alone(), inputs(), told.device)
        except Exception as error:
            works.pop("emitted-compiled", None)
            row["errors"]["emitted-compiled"] = short(error)
    row["ms"], failed = by_turns(works, told.device, told.turn_seconds / 2)
    row["errors"] |= failed
    works.clear()
    free(told.device)
    if size == "tiny":
        row["differs"] = difference(program, inputs(), told.device)
    if told.where and on_gpu:
        show_where(program, alone(), inputs())
    return row


# -- reporting ------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def report(rows: Sequence[Row]) -> None:
    lines = []
    for row in rows:
        if row["part"] == "steps":
            best = min((row["ms"][c] for c in ("eager", "compiled") if c in row["ms"]), default=None)
            cells = [
                ms(row["ms"].get(c)) + (f" ({row['ms'][c] / best:.3f})" if best and c in row["ms"] else "")
                for c in STEP_COLUMNS
            ]
            lines.append(
                [
                    row["model"],
                    row["size"],
                    *cells,
                    ms(row.get("predicted")),
                    ms(row.get("predicted_compiled")),
                    _spread(row.get("loss", {})),
                ]
            )
    if lines:
        print("\n## one device, ms a step (ratio to the faster of eager and compiled)")
        table(["model", "size", *STEP_COLUMNS, "predicted", "compiled", "largest loss / smallest"], lines)
        for row in rows:
            for form, text in row.get("forms", {}).items():
                print(f"{row['model']} {row['size']}, compile={form!r}: {text}")
    ranks = [row for row in rows if row["part"] == "ranks" and "predicted" in row]
    if not ranks:
        return
    print("## one rank of eight: compute, ms; memory, MiB")
    lines, judged = [], {}
    for row in ranks:
        times = dict(row["ms"])
        if "emitted-compiled" in times:
            times["emitted-compiled"] = max(times["emitted-compiled"] - row["gathers"], 0.0)
        said = dict(zip(RANK_COLUMNS, (row["predicted"], row["predicted_compiled"])))
        judged[row["model"], row["size"], row["recipe"]] = said, times
        ratios = [f"{said[c] / times[c]:.3f}" if times.get(c) else "-" for c in RANK_COLUMNS]
        held, reserved = row.get("held"), row.get("reserved")
        lines.append([
            row["model"], row["size"], row["recipe"], ms(row["predicted"]), ms(times.get("emitted")), ratios[0],
            ms(said["emitted-compiled"]), ms(times.get("emitted-compiled")), ratios[1],
            f"{row['predicted_bytes'] / MIB:.0f}", f"{held / MIB:.0f}" if held else "-",
            f"{row['predicted_bytes'] / held:.4f}" if held else "-",
            f"{row['predicted_bytes'] / reserved:.3f}" if reserved else "-",
        ])  # fmt: skip
    head = ["model", "size", "plan", "predicted", "emitted", "ratio", "predicted", "compiled", "ratio",
            "predicted MiB", "held", "ratio", "ratio to reserved"]  # fmt: skip
    table(head, lines)
    differs = {" ".join((row["model"], row["recipe"])): row["differs"] for row in ranks if "differs" in row}
    if differs:
        worst = max(differs, key=lambda key: differs[key])
        print(f"outputs differ from the CPU's by at most {differs[worst]:.4f} of their norm ({worst})")
    for column in RANK_COLUMNS:
        judge(
            column, {key: (said[column], times[column]) for key, (said, times) in judged.items() if times.get(column)}
        )


def _spread(losses: Mapping[str, float]) -> str:
    """How far the columns' first losses are apart: they train the same model."""
    return f"{max(losses.values()) / min(losses.values()):.4f}" if losses else "-"


def judge(column: str, pairs: Mapping[tuple[str, str, str], tuple[float, float]]) -> None:
    """Errors of predicted compute, and whether plans stand in the measured order."""
    for title, chosen in (
        ("models not fitted", [key for key in pairs if key[0] not in FITTED]),
        ("models fitted", [key for key in pairs if key[0] in FITTED]),
    ):
        if chosen:
            errors = {key: abs(pairs[key][0] / pairs[key][1] - 1) for key in chosen}
            worst = max(errors, key=lambda key: errors[key])
            print(
                f"{column}, {title}: mean error {statistics.mean(errors.values()):.1%}, worst {errors[worst]:.1%} "
                f"({' '.join(worst)})"
            )
    for model, size in dict.fromkeys(key[:2] for key in pairs):
        mine = {key[2]: pair for key, pair in pairs.items() if key[:2] == (model, size)}
        apart = [(a, b) for a, b in itertools.permutations(mine, 2) if mine[b][1] > APART * mine[a][1]]
        wrong = [f"{a} before {b}" for a, b in apart if mine[a][0] >= mine[b][0]]
        about = f": wrong {', '.join(wrong)}" if wrong else ""
        print(f"{column}, {model} {size}: {len(apart) - len(wrong)} of {len(apart)} pairs in the measured order{about}")


# -- the program ----------------------------------------------------------------------------------------


def cases(told: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Row]]]:
    """What there is to measure, each under its name."""
    if "steps" in told.parts:
        for size, name in itertools.product(told.sizes, told.models):
            yield f"steps {name} {size}", lambda name=name, size=size: measure_steps(name, size, told)  # type: ignore[misc]
    if "ranks" in told.parts:
        for size, name, recipe in itertools.product(told.rank_sizes, told.models, told.recipes):
            if name != "llama-cache":  # the same program for a plan's purposes
                yield (
                    f"ranks {name} {size} {recipe}",
                    lambda name=name, size=size, recipe=recipe: measure_rank(name, size, recipe, told),  # type: ignore[misc]
                )


def run(told: argparse.Namespace) -> list[Row]:
    began, rows = time.perf_counter(), []
    with told.out.open("a", encoding="utf-8") if told.out else nullcontext(None) as out:
        for title, measure in cases(told):
            spent = time.perf_counter() - began
            if spent > told.seconds:
                print(f"{title}: left out, {spent:.0f} s are over", flush=True)
                continue
            try:
                row = measure()
            except Exception as error:
                part, model, size, *recipe = title.split()
                row = {"part": part, "model": model, "size": size, "errors": {"all": short(error)}, "ms": {}}
                row |= {"recipe": recipe[0]} if recipe else {}
            row["took_s"] = round(time.perf_counter() - began - spent, 1)
            rows.append(row)
            if out is not None:
                out.write(json.dumps(row) + "\n")
                out.flush()
            shown = ", ".join(f"{column} {time:.2f} ms" for column, time in row["ms"].items())
            print(f"{title}: {shown or 'nothing measured'} ({row['took_s']} s)", flush=True)
            for column, text in row["errors"].items():
                print(f"  {column}: {text}", flush=True)
            torch._dynamo.reset()  # type: ignore[no-untyped-call]
            free(told.device)
    return rows


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("steps", "ranks"), default=["steps", "ranks"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=["large", "small"], help="of steps")
    parser.add_argument("--rank-sizes", nargs="+", choices=tuple(SIZES), default=["wide"])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--compile-recipes", nargs="*", choices=RECIPES, default=["plan", "zero3", "megatron"])
    parser.add_argument("--mesh", default="dp=2, tp=4")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny models, for machines without a GPU")
    parser.add_argument("--seconds", type=float, default=540, help="after these nothing new begins")
    parser.add_argument("--turn-seconds", type=float, default=8, help="how long columns take turns, for each model")
    parser.add_argument("--compile-seconds", type=float, default=150, help="limit of one column that compiles")
    parser.add_argument("--where", action="store_true", help="also the instructions of a rank at which most is held")
    parser.add_argument("--out", type=Path, help="JSON lines, added to")
    parser.add_argument("--plans", type=Path, help="the folder of the planner's plans; without it they are made here")
    parser.add_argument("--make-plans", type=Path, help="write the planner's plans into this folder, and end")
    parser.add_argument("--report", type=Path, help="only print the tables of these JSON lines")
    told = parser.parse_args(argv)
    if told.device == "cpu":
        torch.set_num_threads(1)  # threads that wait for each other on a busy machine say nothing
    if told.tiny:
        told.sizes = told.rank_sizes = ["tiny"]
        told.turn_seconds = min(told.turn_seconds, 0.2)
    return told


def main(argv: Sequence[str] | None = None) -> int:
    told = arguments(argv)
    if told.report:
        report([json.loads(line) for line in told.report.read_text(encoding="utf-8").splitlines()])
        return 0
    if told.make_plans:
        make_plans(told)
        return 0
    name = torch.cuda.get_device_name() if told.device == "cuda" else f"CPU, {os.cpu_count()} cores"
    print(f"{name}, PyTorch {torch.__version__}, transformers {transformers.__version__}, mesh {told.mesh}", flush=True)
    report(rows := run(told))
    return int(any(row["errors"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
