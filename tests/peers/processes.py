"""Ranks as processes on this machine, connected by gloo."""
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist

SECONDS = 300  # for all ranks of one call


def hierarchy(rank: int, ranks: int, inner: int) -> list[Any]:
    """The groups of a rank for a2a+p2p: a2a among neighbours, p2p among those in the same place of each."""
    mine = []
    for members in ([list(range(i, i + inner)) for i in range(0, ranks, inner)], [list(range(i, ranks, inner)) for i in range(inner)]):
        made = [(group, dist.new_group(group)) for group in members]
        mine.append(next(handle for group, handle in made if rank in group))
    return mine


class _Done:
    """What a send to oneself leaves to wait for."""

    def wait(self, *_: Any) -> bool:
        return True


class Waited:
    """gloo's work may be waited for once, NCCL's as often as one likes."""

    def __init__(self, work: Any):
        self.work: Any = work

    def wait(self, *_: Any) -> bool:
        if self.work is not None:
            self.work.wait()
            self.work = None
        return True


def _behave_as_nccl() -> None:
    """gloo has no sends to oneself; peers written for NCCL use them, and wait twice."""
    batch = dist.batch_isend_irecv

    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        if all(operation.peer == dist.get_rank() for operation in operations):
            sent, received = ([o.tensor for o in operations if o.op is op] for op in (dist.isend, dist.irecv))
            for source, target in zip(sent, received, strict=True):
                target.copy_(source)
            return [_Done()]
        return [Waited(work) for work in batch(operations)]

    dist.batch_isend_irecv = batch_isend_irecv


def _be_rank(rank: int, num_ranks: int, folder: Path, work: Callable[[int], Any]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks)
    result = work(rank)
    dist.barrier()
    if rank == 0:
        (folder / "result").write_bytes(pickle.dumps(result))


def run_ranks(num_ranks: int, work: Callable[[int], Any]) -> Any:
    """What work(0) returns, after work(rank) ended in every one of num_ranks processes. RuntimeError: the traceback of
    the first rank that raised, or which ranks had not ended after SECONDS."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = {}
        sys.stdout.flush()
        for rank in range(num_ranks):
            process = os.fork()
            if process:
                running[process] = rank
                continue
            code = 1
            try:
                torch.set_num_threads(1)
                _be_rank(rank, num_ranks, folder, work)
                code = 0
            except BaseException:  # a rank ends here whatever happened, or it would go on as its parent
                (folder / f"failure{rank}").write_text(traceback.format_exc())
            os._exit(code)
        deadline, failed = time.monotonic() + SECONDS, None
        while running and failed is None and time.monotonic() < deadline:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                time.sleep(0.005)
            elif status and process in running:
                failed = running.pop(process)
            else:
                running.pop(process, None)
        for process in running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        if failed is not None:
            failure = folder / f"failure{failed}"
            raise RuntimeError(failure.read_text() if failure.exists() else f"rank {failed} ended without a word")
        if running:
            raise RuntimeError(f"ranks {sorted(running.values())} had not ended after {SECONDS} s")
        return pickle.loads((folder / "result").read_bytes())


_behave_as_nccl()
