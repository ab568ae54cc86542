"""The limits of a service. A request beyond them is refused before any work, with the limit in the message."""

from dataclasses import dataclass

LIGHT_BODY = 1 << 19  # a request that is smaller is one of the many that room is kept for
LIGHT_DECODE = 24 << 20  # the same of decoding one picture


@dataclass(frozen=True)
class Limits:
    """Limits of one service; the defaults suit photographs from a telephone."""

    body_bytes: int = 32 << 20  # of a request
    model_bytes: int = 512 << 20  # of a model file that someone opens
    images: int = 64  # in a request
    pixels: int = 40_000_000  # of an image, before it is resized
    waiting_images: int = 256  # that wait for a prediction
    waiting_learnings: int = 1024  # images that wait to be learned; another change counts as one
    classes: int = 10_000
    upload_seconds: float = 60.0
    together: int = 64  # images predicted or learned in one go
    bodies_bytes: int = 128 << 20  # of all requests' bodies and decoded pictures; half of it for small ones
    decode_bytes: int = 320 << 20  # that decoding may take at once, of all pictures
    header_seconds: float = 10.0  # for a request line and its headers to arrive
    connections: int = 512
    per_address: int = (
        128  # connections from one address; more than one batch of 64 uploads, so that a normal client has room
    )
