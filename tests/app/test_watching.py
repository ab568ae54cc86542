"""Pictures learned as they are put into a folder: each once, whatever is killed when."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from nocl.app import watching
from nocl.app.classifier import Classifier
from nocl.app.watching import Watch, list_of
from nocl.plumbing.files import file_digest
from tests.support.practice_models import COLOURS, pictures, png


@pytest.fixture
def model(tmp_path: Path) -> Path:
    Classifier("ncm", backbone="cifar100").save(tmp_path / "m.nocl")
    (tmp_path / "in").mkdir()
    return tmp_path / "m.nocl"


def put(folder: Path, name: str, file: str, seed: int = 0) -> Path:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / file).write_bytes(png(name if name in COLOURS else "grey", seed))
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


def learned_in_two_looks(model: Path) -> dict[str, int]:
    """What two looks learn, the first of which only sees the files."""
    watched = watch(model)
    watched.look()
    return dict(watched.look().learned)


def test_a_new_model_of_the_same_name_learns_the_whole_folder(model: Path) -> None:
    put(model.parent / "in", "red", "a.png")
    assert learned_in_two_looks(model) == {"red": 1}
    Classifier("ncm", backbone="cifar100").save(model)
    assert learned_in_two_looks(model) == {"red": 1}
    assert counts(model) == {"red": 1}
    other = Classifier("ncm", backbone="cifar100").partial_fit(pictures("blue", 1), "blue")
    other.save(model)
    assert learned_in_two_looks(model) == {"red": 1}
    assert counts(model) == {"blue": 1, "red": 1}


def test_an_older_copy_of_the_model_learns_what_came_after_it_and_no_more(model: Path) -> None:
    put(model.parent / "in", "red", "a.png")
    assert learned_in_two_looks(model) == {"red": 1}
    older = model.read_bytes()
    put(model.parent / "in", "blue", "b.png")
    assert learned_in_two_looks(model) == {"blue": 1}
    newer = model.read_bytes()
    model.write_bytes(older)
    assert learned_in_two_looks(model) == {"blue": 1}
    assert counts(model) == {"red": 1, "blue": 1}
    model.write_bytes(newer)
    assert learned_in_two_looks(model) == {}


def first_edition(model: Path, stamps: list[str], pending: list[str], before: str) -> None:
    list_of(model).write_text(json.dumps({"learned": stamps, "pending": pending, "before": before}))


def stamps_of(model: Path) -> list[str]:
    return [stamp for lesson in json.loads(list_of(model).read_text())["lessons"].values() for stamp in lesson]


def test_a_list_of_the_first_edition_is_understood(model: Path) -> None:
    put(model.parent / "in", "red", "a.png")
    learned_in_two_looks(model)
    stamps = stamps_of(model)
    first_edition(model, stamps, [], file_digest(model))
    assert learned_in_two_looks(model) == {}
    first_edition(model, [], stamps, "a digest of the model before")
    assert learned_in_two_looks(model) == {}
    put(model.parent / "in", "blue", "b.png")
    assert learned_in_two_looks(model) == {"blue": 1}  # and the list is written anew
    assert learned_in_two_looks(model) == {}
    first_edition(model, [], stamps, file_digest(model))  # killed before the model was written
    assert learned_in_two_looks(model) == {"blue": 1, "red": 1}
    first_edition(model, stamps, [], file_digest(model))
    Classifier("ncm", backbone="cifar100").save(model)  # it has learned nothing, whatever the list says
    assert learned_in_two_looks(model) == {"blue": 1, "red": 1}


def test_a_class_folder_of_an_unusable_name_is_left_out_and_the_others_are_learned(model: Path) -> None:
    folder = model.parent / "in"
    odd, end = put(folder, "bad\u200bname", "a.png"), put(folder, "spaced ", "b.png")
    put(folder, "red", "c.png")
    watched = watch(model)
    watched.look()
    step = watched.look()
    assert step.learned == {"red": 1}
    assert set(step.bad) == {str(odd), str(end)}
    assert "bad\\u200bname" in step.bad[str(odd)]
    assert "rename the folder" in step.bad[str(odd)]
    assert not watched.look().bad
    odd.parent.rename(folder / "good")
    assert [dict(watched.look().learned) for _ in range(2)] == [{}, {"good": 1}]


@pytest.mark.parametrize("moment", ["listed", "read"])
def test_a_file_that_vanishes_is_skipped_and_learned_when_it_is_back(
    model: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model.parent / "in"
    gone = put(folder, "red", "gone.png")
    put(folder, "red", "stays.png", seed=1)
    (folder / "red" / "nowhere.png").symlink_to(folder / "no such file")
    watched = watch(model)
    watched.look()
    stat, read, away = Path.stat, Classifier.read, model.parent / "gone.png"

    def stat_and_take_away(self: Path, **options: bool) -> os.stat_result:
        found = stat(self, **options)
        if self == gone and moment == "listed":
            gone.rename(away)
        return found

    def take_away_and_read(self: Classifier, path: Path) -> torch.Tensor:
        if path == gone and moment == "read":
            gone.rename(away)
        return read(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", stat_and_take_away)
        patched.setattr(Classifier, "read", take_away_and_read)
        step = watched.look()
    assert step.learned == {"red": 1}
    assert not step.bad
    away.rename(gone)
    assert sum((watched.look().learned for _ in range(2)), Counter()) == {"red": 1}
    assert counts(model) == {"red": 2}


def test_a_class_folder_that_vanishes_while_it_is_listed_does_not_end_the_watch(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model.parent / "in"
    put(folder, "red", "a.png")
    (folder / "blue" / "deep").mkdir(parents=True)
    watched, scandir = watch(model), os.scandir

    def scan(path: str) -> Any:
        if str(path).endswith("blue"):
            shutil.rmtree(folder / "blue", ignore_errors=True)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    watched.look()
    assert watched.look().learned == {"red": 1}
