"""Starting and stopping the service: what tokens are taken, and how a signal ends it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from nocl.app.classifier import Classifier
from nocl.app.serve.door import Door
from nocl.app.serve.server import check_address, serve


@pytest.mark.parametrize(
    ("token", "rule"),
    [
        ("schlüssel-mit-umlaut", "printable ASCII characters only; character 5 "),
        ("a-token-of-good-length\n", "printable ASCII characters only; character 23 "),
        (" a-token-of-good-length", "must not begin or end with a space"),
        ("a-token-of-good-length ", "must not begin or end with a space"),
    ],
)
def test_a_token_that_no_client_can_send_is_refused_at_the_start(token: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule) as refused:
        check_address("127.0.0.1", token)
    assert token.strip() not in str(refused.value)  # it is a secret, and messages are logged
    with pytest.raises(ValueError, match=rule):
        Door(token)


def test_a_token_may_have_spaces_inside_and_must_not_be_empty() -> None:
    check_address("127.0.0.1", "four words of a sentence")
    with pytest.raises(ValueError, match="NOCL_TOKEN is empty"):
        Door("")


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """SIGTERM as the command line takes it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.usefixtures("_interrupts")
def test_a_service_told_to_end_returns_and_one_interrupted_says_so(path: Path) -> None:
    addresses = []

    def send(number: int) -> None:
        def listening(address: str) -> None:
            addresses.append(address)
            os.kill(os.getpid(), number)

        serve(path, port=0, listening=listening)

    send(signal.SIGTERM)
    assert Classifier.load(path).class_names == ["red", "green"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(addresses) == 2
    Classifier.load(path).save(path)  # nobody holds it any more
