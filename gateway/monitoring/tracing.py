"""OpenTelemetry traces, an extra: of each published message, and of the HTTP request that brought it.

Off unless `tracing.endpoint` is set; then nothing is imported, and no call is replaced. When it is on, `install` puts
functions that make spans in the place of those of the bus, and a middleware in front of the application, so the core
knows nothing of it. The span of a message begins when it is published; its child `sync` ends when the message is on
disk. Spans are sent by a thread of OpenTelemetry's own, which drops them if the collector does not keep up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.core.bus import Bus
from gateway.core.errors import OperatorError
from gateway.core.message import Message
from gateway.core.subscriber import Subscriber
from gateway.settings.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

MISSING = "tracing.endpoint: OpenTelemetry is not installed; install Trellis with its extra `otel`"
MAX_WAITING = 4096  # spans that wait to be sent
SEND_SECONDS = 2  # for the collector to take a batch; a stop waits for the last one


class TracingUnavailable(OperatorError):
    """Traces cannot be sent; the text says why."""


class Tracing:
    """Makes spans of what a gateway does. Raises `TracingUnavailable` if OpenTelemetry is not installed."""

    def __init__(self, settings: Settings, version: str, instance: str) -> None:
        try:
            self._provider = _provider(settings, version, instance)
        except ImportError:
            raise TracingUnavailable(MISSING) from None
        self._tracer: Tracer = self._provider.get_tracer("trellis", version)

    def install(self, bus: Bus) -> None:
        """Trace what is published on *bus* from now on."""
        bus.publish_run = self._traced_run(bus, bus.publish_run)  # type: ignore[method-assign,assignment]
        bus.direct = bus.directs.deliver = self._traced_direct(bus.direct)  # type: ignore[assignment,method-assign]

    def stop(self) -> None:
        """Send what waits, for a few seconds at most."""
        self._provider.shutdown()

    def _traced_run(
        self, bus: Bus, publish: Callable[[Sequence[Message], Subscriber | None], None]
    ) -> Callable[[Sequence[Message], Subscriber | None], None]:
        from opentelemetry.trace import set_span_in_context

        tracer = self._tracer

        def publish_run(run: Sequence[Message], origin: Subscriber | None = None) -> None:
            first = run[0]
            with tracer.start_as_current_span("publish", attributes=_attributes(first, len(run))) as span:
                publish(run, origin)
                span.set_attributes({"trellis.sequence": run[-1].seq, "messaging.message.id": first.id})
                sync = tracer.start_span("sync", set_span_in_context(span))
                bus.acceptance.when_accepted(run[-1], sync.end, sync.end)

        return publish_run

    def _traced_direct(self, direct: Callable[[Message, int], int]) -> Callable[[Message, int], int]:
        def traced(message: Message, number: int) -> int:
            with self._tracer.start_as_current_span("direct", attributes=_attributes(message, 1)) as span:
                receivers = direct(message, number)
                span.set_attribute("trellis.receivers", receivers)
                return receivers

        return traced

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return *app* with a span for each HTTP request, which continues the trace in its `traceparent`."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            about = {"http.request.method": scope["method"], "url.path": scope["path"]}
            with self._tracer.start_as_current_span(
                f"{scope['method']}", extract(carrier), SpanKind.SERVER, attributes=about
            ) as span:

                async def answer(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(Status(StatusCode.ERROR))
                    await send(message)

                await app(scope, receive, answer)

        return traced


def of(settings: Settings, version: str, instance: str) -> Tracing | None:
    """The traces that *settings* configure; None if they configure none."""
    return None if settings.tracing.endpoint is None else Tracing(settings, version, instance)


def _provider(settings: Settings, version: str, instance: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    about = {"service.name": "trellis", "service.version": version, "service.instance.id": instance}
    provider = TracerProvider(
        ParentBased(TraceIdRatioBased(settings.tracing.share)), Resource.create(about), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(settings.tracing.endpoint, timeout=SEND_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING))
    return provider


def _attributes(message: Message, count: int) -> dict[str, str | int]:
    return {
        "messaging.system": "trellis",
        "messaging.destination.name": message.channel,
        "messaging.batch.message_count": count,
        "trellis.protocol": message.protocol,
    }
