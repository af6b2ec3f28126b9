"""Predicted step times beside published ones: ``python benchmarks/published.py --table published.csv``

Each row of the table is a training run that somebody measured and published, with its configuration; the columns are
those of its README.  A row that a recipe can express becomes a model of `transformers` on the meta device, a mesh and a
plan; the length of the plan's simulated schedule is the prediction.  Rows judge, nothing is fitted to them.

* FSDP is `zero3`, ZeRO-2 `zero2`, ZeRO-1 `zero1`, DDP `dp`; tensor parallel `megatron`, `sequence` where the run says
  sequence parallel, `fsdp+tp` with FSDP.  Beside tensor parallelism ZeRO-1 counts as data parallel: the same bytes are
  sent, and only the update, once in a step, takes longer.
* Recomputation of whole blocks is `torch.utils.checkpoint` around each, as `transformers` does it.
* Weights and optimizer state are bf16, attention is causal by a flag.
* n micro-batches take n times forward and backward and one update.  FSDP and ZeRO-2 communicate in each, ZeRO-1 and
  DDP reduce gradients in the last one.
* Layers cost alike: 2 and 4 of them are captured, the rest follows; all are where that would not fit in memory, and
  with ``--full``.

Spearman's rank correlation is taken inside groups that are comparable: of one source, card and number of cards, and of
one model, batch and length but for llm-foundry, whose rows differ in these.  There, and beside it everywhere, the order
of efficiencies (floating-point operations of the model a second) is what says something.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

import shardwright as sw
from shardwright.cost import Hardware, hardware_of, program_cost, simulate
from shardwright.frontends.base import BACKWARD, FORWARD, NORM, UPDATE
from shardwright.ir.order import events_of
from shardwright.lower.pieces import rows_of

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "shared" / "published" / "published.csv"
PS_PER_MS = 10**9
ABOUT_30 = 8
"""Of the rows of the largest source every eighth is in the sample."""
RECIPES = {"fsdp": "zero3", "zero2": "zero2", "zero1": "zero1", "ddp": "dp"}
EVERY_BATCH = ("fsdp", "zero2")
"""What gathers and reduces in each micro-batch."""
PIECES = {FORWARD: "gradients", BACKWARD: "gradients", NORM: "update", UPDATE: "update"}
SHORT = (2, 4)
"""Layers that are captured where not all are."""
NO_LIMIT = "1000000 GiB"
"""Of memory: what was measured did fit, whatever is predicted."""
Row = dict[str, str]


def cards() -> dict[str, Hardware]:
    """The cards that presets describe."""
    a100 = hardware_of("a100")
    small = replace(a100, name="A100 SXM 40GB", memory=40 * 10**9, bandwidth=1555 * 10**9)  # NVIDIA's data sheet
    return {"H100-80GB": hardware_of("h100"), "H200": hardware_of("h200"), "A100-80GB": a100, "A100-40GB": small}


def card_of(run: Run) -> Hardware:
    """The card, with what a compiler makes of pointwise ops where the run was compiled."""
    card = cards()[run.gpu]
    return card.as_compiled() if run.compiled else card


# -- rows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A row that can be expressed."""

    line: int
    source: str
    gpu: str
    gpus: int
    model: str
    layers: int
    width: int
    heads: int
    kv: int
    between: int
    words: int
    length: int
    micro: int
    batches: int
    """Micro-batches in a step."""
    dp: int
    tp: int
    sharding: str
    recompute: bool
    compiled: bool
    tied: bool
    recipe: str
    group: Hashable
    measured: float
    """Milliseconds of a step."""

    @property
    def gated(self) -> bool:
        return "llama" in self.model.lower()

    @property
    def flops(self) -> float:
        """What the model takes in a step, recomputation and the half above the diagonal not counted."""
        tokens = self.length * self.micro * self.dp * self.batches
        attention = 2 * self.width * self.width * (1 + self.kv / self.heads)
        block = attention + (3 if self.gated else 2) * self.width * self.between + self.length * self.width
        return 6.0 * tokens * (self.layers * block + self.width * self.words)


def number(row: Row, name: str) -> int:
    return int(float(row[name] or 0))


def cannot(row: Row) -> str | None:
    """Why a row is not expressed, if it is not."""
    notes = row["notes"]
    reasons: Sequence[tuple[bool, str]] = (
        ("OUT OF MEMORY" in notes.split(";")[0], "ran out of memory: there is no time"),
        (not row["step_ms"], "no step time is published, only a FLOP rate"),
        ("quality=suspect" in notes, "the source calls the time suspect"),
        (row["dtype"] != "bf16", f"computes in {row['dtype']}"),
        (number(row, "pp") > 1, "pipeline parallel"),
        (number(row, "cp") > 1, "context parallel"),
        (row["sharding"] == "hsdp", "HSDP: no recipe cuts inside a node and copies across"),
        (row["sharding"] not in (*RECIPES, "hsdp"), "sharding is not published"),
        (row["recompute"] == "selective", "which values selective recomputation keeps is not published"),
        (row["recompute"] not in ("none", "full"), "recomputation is not published"),
        (row["gpu"] not in cards(), f"no preset for {row['gpu']}"),
        (not re.match(r"(mpt|gpt|.*llama)", row["model"].lower()), f"no model like {row['model']} is built here"),
        (any(not row[name] for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq")), "sizes are missing"),
        (bool(re.search(r"(?<!no )async TP", notes)), "async tensor parallelism: no recipe cuts products into parts"),
        (not number(row, "micro_batch") or not number(row, "dp"), "the micro batch is not published"),
    )
    reason = next((reason for holds, reason in reasons if holds), None)
    if reason is None and number(row, "global_batch") % (number(row, "micro_batch") * number(row, "dp")):
        return "the batch is not a whole number of micro batches"
    return reason


def run_of(row: Row, line: int) -> Run:
    notes, tp, dp = row["notes"], max(1, number(row, "tp")), number(row, "dp")
    if tp == 1:
        recipe = RECIPES[row["sharding"]]
    elif row["sharding"] == "fsdp":
        recipe = "fsdp+tp"
    else:
        recipe = "sequence" if "sequence parallel" in notes else "megatron"
    alike: tuple[Any, ...] = (row["source"], row["gpu"], row["gpus"])
    if row["source"] == "llm-foundry":
        alike += tuple(re.findall(r"mixed_precision=(\w+)", notes))
    else:
        alike += (row["model"], row["global_batch"], row["seq"], *re.findall(r"date ([\d-]+)", notes))
    return Run(
        line, row["source"], row["gpu"], number(row, "gpus"), row["model"], number(row, "layers"),
        number(row, "hidden"), number(row, "heads"), number(row, "kv_heads") or number(row, "heads"),
        number(row, "ffn"), number(row, "vocab"), number(row, "seq"), number(row, "micro_batch"),
        number(row, "global_batch") // (number(row, "micro_batch") * dp), dp, tp, row["sharding"],
        row["recompute"] == "full", row["compile"] == "y", "tied embeddings" in notes, recipe, alike,
        float(row["step_ms"]),
    )  # fmt: skip


# -- models ---------------------------------------------------------------------------------------------


def causal(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any) -> Any:
    """Attention as these runs have it: causal by a flag, without a mask."""
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("causal", causal)
AttentionMaskInterface.register("causal", lambda *_, **__: None)


def model_of(run: Run, layers: int) -> torch.nn.Module:
    shared = {"vocab_size": run.words, "use_cache": False, "attn_implementation": "causal"}
    config: Any
    if run.gated:
        config = transformers.LlamaConfig(
            hidden_size=run.width, intermediate_size=run.between, num_hidden_layers=layers,
            num_attention_heads=run.heads, num_key_value_heads=run.kv,
            max_position_embeddings=run.length, tie_word_embeddings=run.tied, **shared,
        )  # fmt: skip
    else:
        config = transformers.OPTConfig(
            hidden_size=run.width, word_embed_proj_dim=run.width, ffn_dim=run.between, num_hidden_layers=layers,
            num_attention_heads=run.heads, max_position_embeddings=run.length, activation_function="gelu",
            enable_bias="mpt" not in run.model.lower(), dropout=0.0, **shared,
        )  # fmt: skip
    cls: Any = transformers.LlamaForCausalLM if run.gated else transformers.OPTForCausalLM
    with torch.device("meta"):
        model: Any = cls(config).to(torch.bfloat16).train()
    if run.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found: torch.nn.Module = model
    return found


# -- predictions ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """Milliseconds of a step on one device, GiB that it holds."""

    step: float
    compute: float
    communication: float
    memory: float

    def and_more(self, other: Predicted, times: float) -> Predicted:
        """This, and so many times what the other has more."""
        names = ("step", "compute", "communication", "memory")
        mine, its = ([getattr(one, name) for name in names] for one in (self, other))
        return Predicted(*(a + times * (b - a) for a, b in zip(mine, its)))


def predict(run: Run, full: bool = False) -> Predicted:
    if full or run.layers <= SHORT[1]:
        return predict_layers(run, run.layers)
    few, more = (predict_layers(run, layers) for layers in SHORT)
    found = few.and_more(more, (run.layers - SHORT[0]) / (SHORT[1] - SHORT[0]))
    # Where so much would not fit, the whole Program is issued in another order.
    return found if found.memory * 2**30 <= cards()[run.gpu].memory else predict_layers(run, run.layers)


def predict_layers(run: Run, layers: int) -> Predicted:
    model = model_of(run, layers)
    ids = torch.empty(run.micro * run.dp, run.length, dtype=torch.long, device="meta")
    mesh = ", ".join(f"{name}={size}" for name, size in (("dp", run.dp), ("tp", run.tp)) if size > 1) or "dp=1"
    plan = sw.plan(
        model, mesh=mesh, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), loss=lambda out: out.loss,
        recipe=run.recipe, hardware=card_of(run), kwargs={"input_ids": ids, "labels": ids}, verify="off",
        memory=NO_LIMIT,
    )  # fmt: skip
    program, graph = plan.program, plan.graph
    cost = program_cost(program, plan.hardware, graph)

    rows = rows_of(plan.source.graph, plan.source.phases, graph, PIECES)
    updates = rows[0][1] if len(rows) > 1 else len(graph.nodes)
    priced = iter(cost.collectives)
    once = set()
    """What runs in the last micro-batch only."""
    for n, instr in enumerate(program.instrs):
        if instr.is_collective:
            if next(priced).role == "gradient" and run.sharding not in EVERY_BATCH:
                once.add(n)
        elif instr.node is not None and instr.node >= updates:
            once.add(n)
    last = simulate(program, plan.hardware, graph, times=cost.times)
    order = tuple(event for event in events_of(program) if not once.issuperset(event.members))
    each = simulate(replace(program, order=order), plan.hardware, graph, times=cost.times)
    figures = (getattr(last, f) + (run.batches - 1) * getattr(each, f) for f in ("total", "compute", "communication"))
    return Predicted(*(ps / PS_PER_MS for ps in figures), plan.memory / 2**30)


# -- judging --------------------------------------------------------------------------------------------


def ranks(values: Sequence[float]) -> list[float]:
    """Places from 1; equal values share the mean of theirs.

    >>> ranks([3.0, 1.0, 3.0])
    [2.5, 1.0, 2.5]
    """
    places = defaultdict(list)
    for place, value in enumerate(sorted(values), 1):
        places[value].append(place)
    return [mean(places[value]) for value in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """
    >>> spearman([1, 2, 3], [10, 30, 20])
    0.5
    """
    x, y = ranks(a), ranks(b)
    middle = (len(x) + 1) / 2
    shared = sum((p - middle) * (q - middle) for p, q in zip(x, y))
    alone = sum((p - middle) ** 2 for p in x) * sum((q - middle) ** 2 for q in y)
    return shared / alone**0.5 if alone else 1.0


Judged = tuple[Run, Predicted]


def correlation(found: Iterable[Judged], figure: Callable[[Run, float], float]) -> str:
    """The mean over comparable groups, each by its size."""
    groups: dict[Hashable, list[Judged]] = defaultdict(list)
    for run, said in found:
        groups[run.group].append((run, said))
    large = [group for group in groups.values() if len(group) > 2]
    if not large:
        return "no group of 3"
    total = sum(
        len(group) * spearman([figure(r, p.step) for r, p in group], [figure(r, r.measured) for r, _ in group])
        for group in large
    )
    count = sum(map(len, large))
    return f"{total / count:.2f} ({count} rows, {len(large)} groups)"


def summary(found: Sequence[Judged]) -> None:
    head = ["source", "rows", "mean error", "worst", "median predicted / measured", "rank of times", "of efficiencies"]
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))

    def line(name: str, mine: Sequence[Judged]) -> None:
        ratios = [said.step / run.measured for run, said in mine]
        errors = [abs(ratio - 1) for ratio in ratios]
        cells = [
            name, str(len(mine)), f"{mean(errors):.1%}", f"{max(errors):.1%}", f"{median(ratios):.3f}",
            correlation(mine, lambda _, ms: ms), correlation(mine, lambda run, ms: run.flops / ms),
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)

    for source in dict.fromkeys(run.source for run, _ in found):
        line(source, [pair for pair in found if pair[0].source == source])
    line("all", found)
    print()
    kinds: dict[str, list[Judged]] = defaultdict(list)
    for run, said in found:
        many = "one node" if run.gpus <= 8 else "2 to 8 nodes" if run.gpus <= 64 else "more nodes"
        kinds[f"{run.gpu}, {many}, {'recomputed' if run.recompute else 'kept'}"].append((run, said))
    for kind, mine in sorted(kinds.items()):
        line(kind, mine)


def show(run: Run, said: Predicted) -> None:
    what = f"{run.model}, {run.length} long, {run.batches} x {run.micro} x {run.dp}"
    split = f"{run.recipe}{f' tp={run.tp}' if run.tp > 1 else ''}{' recomputed' if run.recompute else ''}"
    rate = run.flops / run.measured / 10**9 / run.gpus
    print(
        f"{run.line:4} {run.source}: {run.gpus} {run.gpu}, {what}, {split}: predicted {said.step:.1f} ms "
        f"(compute {said.compute:.1f}, communication {said.communication:.1f}), measured {run.measured:.1f} "
        f"({rate:.0f} TFLOP/s): {said.step / run.measured:.3f}",
        flush=True,
    )


def sample(runs: Sequence[Run]) -> list[Run]:
    """About 30 rows, the same every time: few of the source that has most."""
    largest = Counter(run.source for run in runs).most_common(1)[0][0]
    return [run for run in runs if run.source != largest] + [r for r in runs if r.source == largest][::ABOUT_30]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--source", help="rows whose source begins so")
    parser.add_argument("--rows", type=int, nargs="+", help="by line number of the table")
    parser.add_argument("--limit", type=int, help="at most so many rows")
    parser.add_argument("--sample", action="store_true", help="about 30 rows, the same every time")
    parser.add_argument("--full", action="store_true", help="capture every layer")
    parser.add_argument("--csv", type=Path, help="where predictions go")
    told = parser.parse_args()
    torch.set_num_threads(1)
    with told.table.open(newline="", encoding="utf-8") as file:
        rows = list(enumerate(csv.DictReader(file), 2))
    rows = [(line, row) for line, row in rows if told.source is None or row["source"].startswith(told.source)]
    rows = [(line, row) for line, row in rows if told.rows is None or line in told.rows]
    refused = Counter((row["source"], reason) for _, row in rows if (reason := cannot(row)) is not None)
    runs = [run_of(row, line) for line, row in rows if cannot(row) is None]
    print(f"{len(rows)} rows, {len(runs)} expressed; not expressed:")
    for (source, reason), count in sorted(refused.items()):
        print(f"  {count:4} {source}: {reason}")
    runs = (sample(runs) if told.sample else runs)[: told.limit]
    found, began = [], time.perf_counter()
    for run in runs:
        try:
            found.append((run, predict(run, told.full)))
        except sw.ShardwrightError as error:
            print(f"{run.line:4} {run.source}: not planned: {str(error).splitlines()[0]}")
            continue
        show(*found[-1])
    print(f"{len(found)} rows in {time.perf_counter() - began:.0f} s")
    if told.csv:
        with told.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["line", "source", "gpu", "gpus", "model", "recipe", "measured_ms", "predicted_ms",
                             "compute_ms", "communication_ms", "memory_gib"])  # fmt: skip
            for run, said in found:
                about = (run.line, run.source, run.gpu, run.gpus, run.model, run.recipe, run.measured)
                writer.writerow([*about, said.step, said.compute, said.communication, said.memory])
    if found:
        summary(found)


if __name__ == "__main__":
    main()
