"""Run a method through the protocol on the embedded data set and print what it learned. About a minute on two cores.

python examples/quick_start.py
"""

from nocl import class_incremental, make, run
from nocl.data import load


def main() -> None:
    stream = class_incremental(load("glyphs", train_per_class=20), partition="60+4x10", order_seed=0)
    recipe = {"epochs": 8, "schedule": "onecycle", "normalize": True, "augment": "crop_flip"}
    result = run(make("ncm", recipe=recipe), stream)
    for session, scores in enumerate(result.curve):
        print(session, {name: None if value is None else round(value, 3) for name, value in scores._asdict().items()})
    print("bytes kept:", result.state_bytes)


if __name__ == "__main__":
    main()
