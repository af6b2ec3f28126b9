"""A case as a script that a reader can run: at most `LINES` lines once it is shrunk."""

from __future__ import annotations

from .judging import AUTOMATIC, LIMITED_SECONDS, PLANNED, SIMPLE, Case, Verdict
from .programs import LEAST, Fill

LINES = 15


def script_of(case: Case, verdict: Verdict | None = None) -> str:
    """Python that shows what is wrong; what it should print stands in its comment."""
    program, request = case.program, case.request
    names = ", ".join(f"v{i}" for i in range(len(program.inputs)))
    torch = program.frontend == "torch"
    lines = [f"# {verdict.kind}: {' '.join(verdict.told.split())[:200]}"] if verdict is not None else []
    lines.append("import numpy as np, shardwright as sw, shardwright.numpy as swn")
    if torch:
        lines.append("import torch, torch.nn.functional as F")
    lines.append("r = np.random.default_rng")
    lines.append(f"def f({names}):")
    lines += [f"    {line}" for line in program.body()]
    made = [_fill_text(fill, torch) for fill in program.inputs]
    lines.append(f"args = [{', '.join(made)}]")
    specs = [("in_specs", request.in_specs), ("out_specs", list(request.out_specs))]
    said = "".join(f", {key}={value!r}" for key, value in specs if value)
    if request.way == PLANNED:
        more = f", mesh={request.mesh!r}, hardware={request.hardware!r}{said}" + ", uneven=True" * request.uneven
        if request.asked:
            calls = [f"sw.{kind}({what!r}" + f", {axis!r}" * bool(axis) + ")" for kind, what, axis in request.asked]
            more += f", constraints=[{', '.join(calls)}]"
        limit = f", memory=memory, time_limit={LIMITED_SECONDS}" if request.memory is not None else ""
        if limit:
            lines.append(f"memory = int({request.memory} * sw.plan(f, *args{more}).memory)")
        lines.append(f"plan = sw.plan(f, *args{more}{limit})")
    else:
        more = ", auto_sharding=True" if request.way in (AUTOMATIC, SIMPLE) else ""
        more += ", solver='simple'" if request.way == SIMPLE else ""
        more += f", hardware={request.hardware!r}" if request.hardware != "virtual" else ""
        lines.append(f"plan = sw.shard_map(f, {request.mesh!r}{said}{more}).plan(*args)")
    if request.reload:
        lines.append(f"plan = sw.load_plan(plan.to_json(), f, *args, hardware={request.hardware!r})")
    if request.printed:
        lines.append("print(plan.text(all=True), plan.trace(), plan.trace_events(), plan.explain('v0'))")
    lines.append("print(*plan(*args), *f(*args), sep='\\n')")
    lines.append("print(plan.executed.collectives == plan.collectives, plan.executed.peak_bytes, plan.memory)")
    return "\n".join(lines)


def _fill_text(fill: Fill, torch: bool) -> str:
    """The expression that makes an input, as `programs.argument` does."""
    shape = repr(fill.shape)
    if fill.dtype == "bool":
        text = f"r({fill.seed}).random({shape}) > 0.4"
    elif fill.kind == "below":
        text = f"r({fill.seed}).integers(0, {fill.limit}, {shape})"
    elif fill.kind == "distinct":
        text = f"r({fill.seed}).permutation({fill.limit})[:{fill.shape[0]}]"
    elif "int" in fill.dtype:
        text = f"r({fill.seed}).integers(-9, 10, {shape})"
    else:
        text = f"r({fill.seed}).standard_normal({shape})"
        if fill.kind == "positive":
            text = f"abs({text}) + {LEAST}"
        elif fill.kind == "nan":
            text = f"(lambda n: np.where(abs(n) > 1.5, np.nan, n))({text})"
    if torch:
        return f"torch.asarray({text}).to(torch.{fill.dtype})"
    return f"np.asarray({text}).astype({fill.dtype!r})"
