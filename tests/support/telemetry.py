"""What producers and consumers record by OpenTelemetry, in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from lockstep.otel import ConsumeTracing, SendTracing


@dataclass
class Telemetry:
    """A provider of traces and one of metrics, and hooks that use them."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader])
        self.providers: dict[str, Any] = {"tracer_provider": self.tracer_provider, "meter_provider": self.meter_provider}
        self.sending = SendTracing(**self.providers)
        self.consuming = ConsumeTracing(**self.providers)
        self.tracer = self.tracer_provider.get_tracer("test")

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the spans that have ended, in that order."""
        return [span for span in self.exporter.get_finished_spans() if name is None or span.name == name]

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the attributes and the data point of each series of a metric."""
        return [
            (dict(point.attributes or {}), point) for found in self._metrics() if found.name == metric for point in found.data.data_points
        ]

    def _metrics(self) -> Iterator[Any]:
        data = self.reader.get_metrics_data()
        for resource in [] if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                yield from scope.metrics


def trace_of(span: ReadableSpan) -> int:
    return context_of(span).trace_id


def id_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context
