"""Counters of one service in Prometheus' text format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nocl.app.classifier import Classifier

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """What ``/metrics`` shows."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "nocl_requests", "Requests by path and status", ["path", "status"], registry=self._registry
        )
        self.seconds = Histogram(
            "nocl_request_seconds", "Time to answer", ["path"], registry=self._registry, buckets=_BUCKETS
        )
        self.predicted = Counter("nocl_images_predicted", "Images predicted", registry=self._registry)
        self.learned = Counter("nocl_images_learned", "Images learned", registry=self._registry)
        self.forgotten = Counter("nocl_classes_forgotten", "Classes forgotten", registry=self._registry)
        self.waiting = Gauge("nocl_waiting", "Images and other changes waiting", ["queue"], registry=self._registry)
        self.classes = Gauge("nocl_classes", "Classes known", registry=self._registry)
        self.bytes = Gauge("nocl_statistics_bytes", "Bytes kept of all classes", registry=self._registry)

    def text(self, model: Classifier, predicting: int, learning: int) -> bytes:
        """Everything, with the state of the model now."""
        self.waiting.labels("predict").set(predicting)
        self.waiting.labels("learn").set(learning)
        self.classes.set(len(model.class_names))
        self.bytes.set(model.learner_.state_bytes()["statistics"])
        return generate_latest(self._registry)
