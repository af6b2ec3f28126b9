"""The watch over other ranks, without any: beats, faults, agreement, who may be waited for how long, the launch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from shardwright.errors import MeshError, RankError, SpecError  # noqa: E402
from shardwright.run.torch import TorchEngine  # noqa: E402
from shardwright.run.torch.ranks.agreement import Agreement, Facts, inputs_digest, name_the_odd  # noqa: E402
from shardwright.run.torch.ranks.joining import join_others, launch_note  # noqa: E402
from shardwright.run.torch.ranks.processes import Fault, Process  # noqa: E402
from shardwright.run.torch.ranks.waiting import PHASE, STEP, USER, Activity, Doing, Limits, judge, limits_of  # noqa: E402
from shardwright.run.torch.ranks.watch import Watch  # noqa: E402
from shardwright.spec.mesh import DeviceMesh  # noqa: E402

# -- how long -------------------------------------------------------------------------------------------


def test_the_timeout_comes_from_the_caller_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDWRIGHT_TIMEOUT", raising=False)
    assert limits_of() == Limits(60.0, 600.0)
    monkeypatch.setenv("SHARDWRIGHT_TIMEOUT", "12.5")
    assert limits_of() == Limits(12.5, 12.5)
    assert limits_of(3) == Limits(3.0, 3.0)
    monkeypatch.setenv("SHARDWRIGHT_TIMEOUT", "soon")
    with pytest.raises(SpecError, match="SHARDWRIGHT_TIMEOUT is 'soon'"):
        limits_of()
    with pytest.raises(SpecError, match="timeout= is -1"):
        limits_of(-1)


def judged(mine: Doing, *others: Doing, runs_ahead: bool = False) -> tuple[str | None, list[str]]:
    fault, notes = judge(0, mine, dict(enumerate(others, 1)), Limits(), runs_ahead)
    return fault and str(fault), list(notes.values())


def test_who_is_in_user_code_is_named_at_60_s_and_ended_at_600() -> None:
    def waited(seconds: float, there: float) -> tuple[str | None, list[str]]:
        mine = Doing(12, STEP, "step 12 (f)", seconds)
        return judged(mine, Doing(12, STEP, "step 12 (f)", seconds), Doing(11, USER, "step 11 (f)", there))

    assert waited(50.0, 500.0) == (None, [])
    assert waited(61.0, 61.0) == (None, ["rank 2 has been in user code for 61 s, others wait in step 12 (f)"])
    assert waited(599.0, 5000.0)[0] is None  # all were there: this rank has waited for less than that
    assert waited(601.0, 601.0) == (
        "rank 2 did not arrive at step 12 (f) within 600 s, but stayed in user code "
        "(timeout= or SHARDWRIGHT_TIMEOUT allow more)", [],
    )  # fmt: skip


def test_a_phase_may_last() -> None:
    mine = Doing(12, STEP, "step 12 (f)", 5000.0)
    saving = Doing(11, PHASE, "saving", 4000.0)
    assert judged(mine, saving) == (None, ["rank 1 has been in saving for 4000 s, others wait in step 12 (f)"])
    planning = Doing(12, PHASE, "planning", 4000.0)  # as part of the step in which others wait for the plan
    assert judged(mine, planning)[0] is None
    assert judged(mine, Doing(11, USER, "", 5.0)) == (None, [])  # it was in a phase until now


def test_a_step_may_take_60_s_from_when_the_last_rank_entered() -> None:
    mine = Doing(3, STEP, "step 3 (f)", 300.0)
    assert judged(mine, Doing(3, STEP, "step 3 (f)", 59.0))[0] is None
    assert str(judged(mine, Doing(3, STEP, "step 3 (f)", 61.0))[0]).startswith(
        "ranks 0, 1 did not finish step 3 (f) within 60 s; all have arrived"
    )
    assert str(judged(mine, Doing(3, USER, "step 3 (f)", 61.0))[0]).startswith(
        "rank 0 did not finish step 3 (f) within 60 s; rank 1 went on"
    )
    assert str(judged(mine, Doing(2, STEP, "step 2 (f)", 61.0))[0]).startswith(
        "rank 1 did not arrive at step 3 (f) within 60 s, but stayed in step 2 (f)"
    )


def test_user_code_waits_for_a_step_only_where_the_device_works_on() -> None:
    mine, late = Doing(5, USER, "step 5 (f)", 700.0), Doing(4, USER, "step 4 (f)", 700.0)
    assert judged(mine, late) == (None, [])
    assert str(judged(mine, late, runs_ahead=True)[0]).startswith("rank 1 did not arrive at step 5 (f)")
    assert judged(mine, mine, runs_ahead=True) == (None, [])  # all are in user code


def test_what_the_main_thread_does() -> None:
    activity = Activity()
    assert activity.now()[:3] == (0, USER, "")
    activity.enter_step("f")
    activity.enter_phase("planning")
    assert activity.now()[:3] == (1, PHASE, "planning")
    assert activity.in_step
    activity.leave()
    assert activity.now()[:3] == (1, STEP, "step 1 (f)")
    activity.forgive(-10.0)
    assert activity.now().seconds >= 10.0
    activity.forgive(10.0)
    assert activity.now().seconds < 10.0
    activity.leave()
    assert activity.now()[:3] == (1, USER, "step 1 (f)")
    assert not activity.in_step


# -- the watch ------------------------------------------------------------------------------------------


class Another:
    """A rank that exists in the store only."""

    def __init__(self, store: Any, rank: int, process: Process) -> None:
        self.store, self.rank = store, rank
        store.set(f"who/{rank}", json.dumps(process.fields))
        self.does(0, USER, "", 0.0)

    def does(self, *doing: Any) -> None:
        self.store.set(f"beat/{self.rank}", Doing(*doing).to_text())


def closed(watch: Watch) -> None:
    os.close(watch._wake)
    os.close(watch._waker)


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Not started: the tests look themselves, once a call."""
    made = Watch(dist.HashStore(), 0, Limits(0.2, 0.2))
    made.ranks = {0, 1, 2}
    for rank in (1, 2):
        Another(made.store, rank, Process.this())
    yield made
    closed(made)


def look(watch: Watch) -> str | None:
    watch._look()
    watch._look_here()
    return None if watch.fault is None else str(watch.fault)


def enter(watch: Watch, steps: int, ago: float) -> None:
    for n in range(steps):
        watch.activity.enter_step("f")
        if n < steps - 1:
            watch.activity.leave()
    watch.activity.forgive(-ago)


def test_nothing_is_wrong(watch: Watch) -> None:
    assert look(watch) is None
    enter(watch, 1, 0.0)
    assert look(watch) is None


def test_a_fault_that_was_told_is_seen_and_the_first_one_counts(watch: Watch) -> None:
    other, late = Watch(watch.store, 1, Limits()), Watch(watch.store, 2, Limits())
    assert str(other.tell(Fault((1,), "failed: ValueError: no"))) == "rank 1 failed: ValueError: no"
    assert look(watch) == "rank 1 failed: ValueError: no"
    assert str(late.tell(Fault((2,), "failed later"))) == "rank 1 failed: ValueError: no"
    closed(other)
    closed(late)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def process_of(child: subprocess.Popen[bytes]) -> Process:
    with open(f"/proc/{child.pid}/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    return Process(Process.this().host, child.pid, started)


def test_a_dead_process_is_seen(watch: Watch, child: subprocess.Popen[bytes]) -> None:
    Another(watch.store, 2, process_of(child))
    assert look(watch) is None
    child.kill()
    child.wait()
    assert look(watch) is None  # it may have left: the store is asked
    assert look(watch) == f"rank 2 died: its process {child.pid} is gone"


def test_who_left_in_good_order_is_not_dead(watch: Watch, child: subprocess.Popen[bytes]) -> None:
    Another(watch.store, 2, process_of(child))
    assert look(watch) is None
    watch.store.set("left/2", "1")
    child.kill()
    child.wait()
    for _ in range(3):
        assert look(watch) is None


def test_a_stopped_process_is_seen_and_continued(
    watch: Watch, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = process_of(child)
    Another(watch.store, 2, process)
    assert look(watch) is None
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert look(watch) is None  # it is given time
    monkeypatch.setattr("shardwright.run.torch.ranks.watch.STOPPED", -1.0)
    assert look(watch) == f"rank 2 is stopped: its process {child.pid} does not run (SIGSTOP)"
    assert process.state() != "T"


def test_silence_on_another_host_is_seen(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.run.torch.ranks.watch.SILENCE", 0.05)
    other = Another(watch.store, 2, Process("elsewhere", 1, "0"))
    assert look(watch) is None
    time.sleep(0.1)
    other.does(1, USER, "", 1.0)
    assert look(watch) is None
    time.sleep(0.1)
    assert look(watch) == "rank 2 gave no sign of life for 0 s"


def test_silence_in_a_phase_is_given_more_time(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.run.torch.ranks.watch.SILENCE", 0.05)
    Another(watch.store, 2, Process("elsewhere", 1, "0")).does(1, PHASE, "compiling", 1.0)
    assert look(watch) is None
    time.sleep(0.1)
    assert look(watch) is None


def test_who_does_not_arrive_is_named(watch: Watch) -> None:
    enter(watch, 3, 1.0)
    Another(watch.store, 1, Process.this()).does(3, STEP, "step 3 (f)", 1.0)
    Another(watch.store, 2, Process.this()).does(2, USER, "step 2 (f)", 1.0)
    assert str(look(watch)).startswith("rank 2 did not arrive at step 3 (f) within 0.2 s, but stayed in user code")


def test_who_was_never_heard_does_not_arrive_either(watch: Watch) -> None:
    watch.ranks |= {3}
    enter(watch, 1, 1.0)
    for rank in (1, 2):
        Another(watch.store, rank, Process.this()).does(1, STEP, "step 1 (f)", 1.0)
    assert str(look(watch)).startswith("rank 3 did not arrive at step 1 (f)")


def test_only_ranks_that_a_step_takes_are_waited_for(watch: Watch) -> None:
    watch.ranks |= {3}
    watch.peers = frozenset({0, 1, 2})
    enter(watch, 1, 1.0)
    for rank, seconds in ((1, 1.0), (2, 0.0)):
        Another(watch.store, rank, Process.this()).does(1, STEP, "step 1 (f)", seconds)
    watch.store.set("left/3", "1")
    assert look(watch) is None


def test_one_line_says_who_is_waited_for(
    watch: Watch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.limits = Limits()
    monkeypatch.setattr("shardwright.run.torch.ranks.watch._LEFT_AFTER", 1e9)
    enter(watch, 3, 61.0)
    Another(watch.store, 1, Process.this()).does(3, STEP, "step 3 (f)", 61.0)
    Another(watch.store, 2, Process.this()).does(2, USER, "step 2 (f)", 61.0)
    for _ in range(3):
        watch._judged = 0.0
        assert look(watch) is None
    said = capsys.readouterr().err
    assert said == "shardwright: rank 2 has been in user code for 61 s, others wait in step 3 (f)\n"


def test_who_left_is_a_fault_for_those_who_wait_only(watch: Watch) -> None:
    watch.limits = Limits()
    watch.store.set("left/1", "1")
    assert look(watch) is None
    enter(watch, 1, 3.0)
    assert look(watch) is None  # noticed now, and given time
    watch._left[1] -= 3.0
    assert look(watch) == "rank 1 ended while others wait for it in step 1 (f)"


class Gone:
    def set(self, *_: Any) -> None:
        raise RuntimeError("Broken pipe")

    def compare_set(self, *_: Any) -> None:
        raise RuntimeError("Broken pipe")


def test_the_store_is_lost(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    watch.store = Gone()
    enter(watch, 1, 0.0)
    for _ in range(2):
        assert look(watch) is None
    assert look(watch) == "rank 0 is gone, and the store with it (RuntimeError: Broken pipe)"


def test_a_store_that_does_not_answer_is_noticed(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    watch._looked -= 21.0
    watch._look_here()
    assert watch.fault is None  # nobody waits
    enter(watch, 1, 0.0)
    watch._look_here()
    assert str(watch.fault) == "rank 0 lost the store that torchrun holds (no answer for 20 s)"


def test_time_in_which_this_process_did_not_run_is_nobodys(watch: Watch) -> None:
    enter(watch, 3, 100.0)
    watch._forgive(100.0)
    assert look(watch) is None


# -- agreement ------------------------------------------------------------------------------------------


class Ranks:
    """Several ranks at one store."""

    def __init__(self, count: int) -> None:
        self.store = dist.HashStore()
        self.of = [Agreement(rank, range(count)) for rank in range(count)]

    def step(self, n: int, **odd: Any) -> None:
        for rank, agreement in enumerate(self.of):
            facts = {"step": n, "options": 1, "contract": 2, "inputs": n, **odd.get(f"rank{rank}", {})}
            like = facts.pop("like", None)
            agreement.add(Facts(**facts), like)

    def exchange(self) -> set[str]:
        found = set()
        for _ in range(2):
            found |= {str(fault) for fault in (agreement.exchange(self.store) for agreement in self.of) if fault}
        return found


def test_ranks_that_agree_leave_one_key_each() -> None:
    ranks = Ranks(3)
    for n in range(5000):
        ranks.step(n)
        if n % 700 == 0:
            assert ranks.exchange() == set()
    assert ranks.exchange() == set()
    assert ranks.store.num_keys() == 3
    assert all(agreement.settled(ranks.store) for agreement in ranks.of)
    assert len(ranks.store.get("agree/0_1_2/0")) <= 1024 * 16 + 8


@pytest.mark.parametrize(
    ("field", "text"),
    [("options", "other options (numbers in param_groups)"), ("contract", "another program, plan or data="),
     ("inputs", "other inputs")],
)  # fmt: skip
def test_who_differs_once_is_named(field: str, text: str) -> None:
    ranks = Ranks(4)
    for n in range(1, 100):
        ranks.step(n, **({"rank2": {field: 77}} if n == 40 else {}))
    assert ranks.exchange() == {f"rank 2 has {text} than ranks 0, 1, 3 in step 40"}


def test_who_is_a_step_ahead_is_named() -> None:
    ranks = Ranks(3)
    for n in range(1, 9):
        ranks.step(n, **({"rank0": {"step": n + 1}} if n >= 5 else {}))
    assert ranks.exchange() == {"rank 0 has another step number (6) than ranks 1, 2 in step 5"}


def test_inputs_are_compared_between_ranks_that_have_the_same() -> None:
    ranks = Ranks(4)
    own = {f"rank{rank}": {"inputs": rank // 2, "like": [rank // 2 * 2, rank // 2 * 2 + 1]} for rank in range(4)}
    for n in range(10):
        ranks.step(n, **own)
    assert ranks.exchange() == set()
    own["rank3"]["inputs"] = 9
    ranks.step(10, **own)
    assert ranks.exchange() == {"rank 3 has other inputs than ranks 0, 1, 2 in step 10"}


def test_those_a_step_behind_are_waited_for_before_a_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 differ; the third tells which of them is odd."""
    ranks = Ranks(3)
    for rank, options in ((0, 5), (1, 1)):
        ranks.of[rank].add(Facts(1, options))
    assert ranks.exchange() == set()
    ranks.of[2].add(Facts(1, 1))
    assert ranks.exchange() == {"rank 0 has other options (numbers in param_groups) than ranks 1, 2 in step 1"}
    monkeypatch.setattr("shardwright.run.torch.ranks.agreement._PATIENCE", 0.0)
    ranks = Ranks(3)
    for rank, options in ((0, 5), (1, 1)):
        ranks.of[rank].add(Facts(1, options))
    assert ranks.exchange() == {"rank 1 has other options (numbers in param_groups) than rank 0 in step 1"}


def test_a_fingerprint_that_a_device_still_computes() -> None:
    class Slow:
        done = False

        def ready(self) -> bool:
            return self.done

        def value(self) -> int:
            return 8

    ranks, slow = Ranks(2), Slow()
    ranks.of[0].add(Facts(1, inputs=slow))
    ranks.of[1].add(Facts(1, inputs=9))
    assert ranks.exchange() == set()
    slow.done = True
    assert ranks.exchange() == {"rank 1 has other inputs than rank 0 in step 1"}


def test_who_leaves_with_fewer_steps_is_named() -> None:
    ranks = Ranks(2)
    ranks.step(1)
    ranks.of[0].add(Facts(2, 1, 2, 2))
    assert ranks.of[1].leave(ranks.store) is None
    assert not ranks.of[1].settled(ranks.store)
    assert str(ranks.of[0].leave(ranks.store)) == "rank 1 left after 1 steps, rank 0 after 2"


def test_of_two_equal_camps_the_one_with_rank_0_is_right() -> None:
    fault = name_the_odd({0: (1, 1, 0, 0), 1: (1, 1, 0, 0), 2: (1, 2, 0, 0), 3: (1, 2, 0, 0)}, range(4))
    assert fault is not None
    assert fault.ranks == (2, 3)


DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float16, torch.float32,
          torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint32]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (1, 1030), (3, 5000)])
def test_a_digest_sees_every_byte_its_place_and_the_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert inputs_digest([x]) == inputs_digest([x.clone()])
    assert inputs_digest([x]) == inputs_digest([torch.stack([x, x], -1)[..., 0]])
    assert inputs_digest([x]) != inputs_digest([x.reshape(1, *shape)])
    assert inputs_digest([x]) != inputs_digest([x, x])
    for at in {0, x.numel() // 2, x.numel() - 1} if x.numel() else ():
        other = x.clone()
        flat = other.view(-1)
        flat[at] = (
            torch.ones((), dtype=dtype) if complex(flat[at].to(torch.complex128)) == 0 else torch.zeros((), dtype=dtype)
        )
        assert inputs_digest([other]) != inputs_digest([x])


def test_a_digest_sees_another_order() -> None:
    x = torch.randn(64, 300)
    assert (
        len({inputs_digest([x]), inputs_digest([x.flip(0)]), inputs_digest([x.flip(1)]), inputs_digest([x[:, 1:]])})
        == 4
    )
    assert inputs_digest([x[:, 1:]]) == inputs_digest([x[:, 1:].clone()])
    flat = torch.arange(50000, dtype=torch.int32)
    assert inputs_digest([flat[1:]]) == inputs_digest([flat[1:].clone()])  # not where 8 bytes begin


# -- the launch -----------------------------------------------------------------------------------------


def test_machines_that_are_as_the_planner_takes_them() -> None:
    machines = {rank: "ab"[rank // 4] for rank in range(8)}
    for axes in ("dp=2, tp=4", "dp=4, tp=2", "dp=8", "tp=8"):
        assert launch_note(DeviceMesh(axes), machines) is None
    assert launch_note(DeviceMesh("dp=2, tp=4"), machines, node=4) is None
    assert launch_note(DeviceMesh("dp=2, tp=4"), machines, node=8) is not None  # dp was taken to be inside
    assert launch_note(DeviceMesh("dp=2, tp=4"), dict.fromkeys(range(8), "a")) is None


def test_machines_in_another_order() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    turned = {rank: "ab"[rank % 2] for rank in range(8)}
    assert launch_note(mesh, turned) == (
        "the ranks of a machine do not follow each other (ranks 0, 2, 4, 6; ranks 1, 3, 5, 7): "
        "axis 'tp' runs between machines"
    )
    straight = DeviceMesh("dp=2, tp=4", device_ids=[0, 2, 4, 6, 1, 3, 5, 7])
    assert "axis 'dp' runs between machines" in str(launch_note(straight, turned))  # taken to be ranks 0 and 1 of one
    uneven = {rank: "aaabbbbb"[rank] for rank in range(8)}
    assert launch_note(mesh, uneven, node=4) == (
        "machines have unlike numbers of ranks (1 of 3, 1 of 5): axis 'tp' runs between machines"
    )


def test_an_environment_that_says_nothing_sensible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "is_initialized", lambda: False)  # whatever other tests have left
    with pytest.raises(MeshError, match="RANK is 2, WORLD_SIZE 2"):
        join_others(Limits())
    monkeypatch.setenv("MASTER_PORT", "http")
    with pytest.raises(MeshError, match="MASTER_PORT is 'http'"):
        join_others(Limits())


# -- state, in one process ------------------------------------------------------------------------------


def test_one_process_starts_from_its_own_state() -> None:
    engine = TorchEngine({"x": 1})
    whole = torch.arange(6.0).reshape(2, 3)
    (shard,) = engine.load_from_rank0([whole], ["[x, _]"])
    torch.testing.assert_close(shard, whole)
    assert shard.data_ptr() != whole.data_ptr()
    assert engine.counts == {"load": 1}
    engine.check_equal([whole])
    with pytest.raises(RankError, match="rank 0 has no values of 'w': it is on the meta device"):
        engine.load_from_rank0([torch.empty(2, device="meta")], ["[_]"], ["w"])
