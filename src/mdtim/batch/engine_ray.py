"""Workers as actors of a Ray cluster, each of which holds the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mdtim.batch.engine import Outcome, Work, WorkerLost, attempt


class _Actor:
    def __init__(self, work: Work) -> None:
        self.work = work

    def do(self, task: Any) -> Outcome:
        return attempt(self.work, task)


class RayPool:
    """Actors, one for each worker; made by :func:`ray_pool`."""

    def __init__(self, ray: Any, size: int, gpus: float) -> None:
        self.ray = ray
        self.size = size
        # Restarting is ours: Ray's own would repeat a task that kills its worker for ever.
        self.actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Actor)
        self.kept: tuple[Work, Any] | None = None

    def start(self, work: Work) -> Any:
        """Start an actor; the work, model and all, is stored in the cluster once."""
        if self.kept is None or self.kept[0] is not work:
            self.kept = work, self.ray.put(work)
        return self.actor.remote(self.kept[1])

    def submit(self, worker: Any, task: Any) -> Any:
        """Give a task to an actor."""
        return worker.do.remote(task)

    def wait(self, tickets: Sequence[Any]) -> Any:
        """Wait for any of the tickets."""
        return self.ray.wait(list(tickets), num_returns=1)[0][0]

    def outcome(self, ticket: Any, task: Any) -> Outcome:
        """What became of a ticket."""
        try:
            done = self.ray.get(ticket)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError) as error:
            raise WorkerLost(f"{type(error).__name__}") from error
        except self.ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from error
        return Outcome(task, done.result, done.error)

    def stop(self, worker: Any) -> None:
        """Let go of an actor."""
        self.ray.kill(worker)


@contextmanager
def ray_pool(address: str | None, workers: int | None, device: str) -> Iterator[RayPool]:
    """Join a cluster, or start one on this machine for as long as it is needed.

    Parameters
    ----------
    address : of a cluster ("auto", "ray://host:10001"); None starts one
    workers : number of actors; None: as many as the cluster has CPUs, or GPUs on "cuda"
    device : an actor on "cuda" takes a GPU for itself, others a CPU
    """
    ray: Any
    try:
        import ray
    except ImportError as error:
        raise ValueError("the engine ray is not installed; pip install 'mdtim[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        try:
            if address is None:
                ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
            else:
                ray.init(address=address, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"the Ray cluster {address} cannot be reached: {error}") from error
    try:
        gpus = 1 if device.startswith("cuda") else 0
        have = ray.cluster_resources().get("GPU" if gpus else "CPU", 0)
        if have < 1:
            raise ValueError(f"the Ray cluster has no {'GPU' if gpus else 'CPU'} to work on")
        yield RayPool(ray, int(min(workers or have, have)), gpus)
    finally:
        if ours:
            ray.shutdown()
