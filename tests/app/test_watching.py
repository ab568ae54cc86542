"""Pictures learned as they are put into a folder: each once, whatever is killed when."""

from pathlib import Path

import pytest

from nocl.app import watching
from nocl.app.classifier import Classifier
from nocl.app.watching import Watch, list_of
from tests.support.practice_models import png


@pytest.fixture
def model(tmp_path: Path) -> Path:
    Classifier("ncm", backbone="cifar100").save(tmp_path / "m.nocl")
    (tmp_path / "in").mkdir()
    return tmp_path / "m.nocl"


def put(folder: Path, name: str, file: str, seed: int = 0) -> Path:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / file).write_bytes(png(name, seed))
    return folder / name / file


def watch(model: Path) -> Watch:
    return Watch(model, model.parent / "in", Classifier.load(model))


def counts(model: Path) -> dict[str, int]:
    return Classifier.load(model).counts_


def test_a_picture_is_learned_once_it_has_settled_and_never_again(model: Path) -> None:
    watched, folder = watch(model), model.parent / "in"
    put(folder, "red", "a.png")
    assert not watched.look().learned  # it may still be copied
    assert watched.look().learned == {"red": 1}
    put(folder, "blue", "b.png")
    assert [dict(watched.look().learned) for _ in range(3)] == [{}, {"blue": 1}, {}]
    assert counts(model) == {"red": 1, "blue": 1}
    again = watch(model)  # after a restart
    assert not [again.look().learned for _ in range(3)][-1]
    assert counts(model) == {"red": 1, "blue": 1}
    put(folder, "red", "a.png", seed=5)  # another picture of the same name
    assert [dict(again.look().learned) for _ in range(2)] == [{}, {"red": 1}]


def test_what_is_no_picture_is_named_once_and_left_out(model: Path) -> None:
    watched, folder = watch(model), model.parent / "in"
    put(folder, "red", "a.png")
    (folder / "red" / "notes.txt").write_text("not a picture")
    (folder / "red" / ".hidden").write_text("not looked at")
    (folder / "loose.png").write_bytes(png("red", 1))  # in no class folder
    watched.look()
    step = watched.look()
    assert list(step.bad) == [str(folder / "red" / "notes.txt")]
    assert step.learned == {"red": 1}
    assert not watched.look().bad


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_around_the_writing_of_the_model_neither_loses_nor_repeats(
    model: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Classifier.save

    def killed(self: Classifier, path: Path, *, held: bool) -> None:
        if moment == "after":
            save(self, path, held=held)
        raise KeyboardInterrupt

    put(model.parent / "in", "red", "a.png")
    watched = watch(model)
    watched.look()
    with monkeypatch.context() as patched:
        patched.setattr(Classifier, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            watched.look()
    again = watch(model)
    again.look()
    again.look()
    assert counts(model) == {"red": 1}


def test_many_pictures_are_learned_in_groups(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "AT_ONCE", 2)
    for seed in range(3):
        put(model.parent / "in", "red", f"{seed}.png", seed)
    watched = watch(model)
    watched.look()
    first = watched.look()
    assert (dict(first.learned), first.more) == ({"red": 2}, True)
    second = watched.look()
    assert (dict(second.learned), second.more) == ({"red": 1}, False)


def test_the_list_keeps_no_names_and_a_damaged_one_is_an_error(model: Path) -> None:
    put(model.parent / "in", "red", "secret.png")
    watched = watch(model)
    watched.look()
    watched.look()
    assert "secret" not in list_of(model).read_text()
    list_of(model).write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        watch(model)


def test_a_missing_folder_is_said(model: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        Watch(model, model.parent / "nowhere", Classifier.load(model))
