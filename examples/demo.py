"""A small Llama on 8 devices, in one process: planned, proven, trained, a broken copy refused, a report.  ``make demo``.

python -m examples.demo [FOLDER]        # where the report and the plan go; by default the present folder
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

import shardwright as sw

MESH = "dp=2, tp=4"


class Model(torch.nn.Module):
    """Llama with its loss: the next token of every place."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=4, use_cache=False,
        )  # fmt: skip
        self.llama = transformers.LlamaForCausalLM(config)

    def forward(self, tokens: Any) -> Any:
        out = self.llama(input_ids=tokens).logits[:, :-1]
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())


def step_of(model: Model) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)


def planned(model: Model, tokens: Any) -> sw.Plan:
    # So small a model is quickest on one device; links without a time to start are where splitting pays at this size.
    return sw.plan(model, tokens, optimizer=step_of(model), mesh=MESH, hardware="virtual")


def train(plan: sw.Plan, eager: Model, tokens: Any) -> None:
    """Three steps, beside three of eager PyTorch on one device."""
    step, optimizer = plan.step(), step_of(eager)
    for number in range(3):
        loss = eager(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"  step {number}: loss {step(tokens):.12f} on 8 devices, {loss:.12f} on one")
    print(f"  {len(step.collectives)} collectives a step, as planned")


def broken(text: str) -> str:
    """The plan's file with one sum over devices left out."""
    record = json.loads(text)
    texts = record["texts"]
    for _, _, results, homes in record["pieces"][0]["nodes"]:
        for place, number in enumerate(results):
            whole, pending, _ = texts[number].partition(" // ")
            if pending and homes[place] == number:
                texts.append(whole)
                results[place] = homes[place] = len(texts) - 1
                return json.dumps(record)
    raise SystemExit("the plan has no sums over devices")


def main(folder: Path) -> None:
    torch.manual_seed(0)
    model, tokens = Model().double(), torch.randint(0, 256, (8, 16))
    eager = copy.deepcopy(model)

    print(f"=== A training step of a small Llama, planned for {MESH}\n")
    plan = planned(model, tokens)
    print(plan)

    print("\n=== Proven equal to the program on one device\n")
    print(f"  {plan.verify()}")

    print("\n=== Trained on 8 devices in this process\n")
    train(plan, eager, tokens)

    print("\n=== A copy of the plan with one sum over devices left out\n")
    try:
        sw.load_plan(broken(plan.to_json()), model, tokens, optimizer=step_of(model)).verify()
    except sw.ShardwrightError as error:
        print("  refused: " + str(error).replace("\n", "\n  "))
    else:
        raise SystemExit("the broken copy was not refused")

    print("\n=== The report\n")
    (folder / "plan.json").write_text(plan.to_json())
    page = plan.html(folder / "plan.html")
    print(f"  {page.resolve()}: open it in a browser")
    print(f"  {(folder / 'plan.json').resolve()}: the plan, for sw.load_plan")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
