"""Numbers for Prometheus: counts and times, never names of tables, columns or people."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What one service counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter(
            "mdtim_requests",
            "Answers by method, route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.jobs = Counter(
            "mdtim_jobs", "Jobs that ended, by how.", ("state",), registry=self._registry
        )
        self.job_seconds = Histogram(
            "mdtim_job_seconds",
            "Time from the start of a job to its end.",
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800),
            registry=self._registry,
        )

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a number that is asked for whenever the metrics are."""
        Gauge(name, description, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Everything in the text format."""
        return generate_latest(self._registry)
