"""Tables and page: numbers by hand, only like with like, nothing unescaped, nothing fetched."""

import csv
import io
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from nocl.experiments.report import (
    page,
    session_rows,
    session_table,
    summarise,
    to_csv,
    to_latex,
    to_markdown,
    write_report,
)
from nocl.experiments.report.chart import Series, line_chart, swatch, ticks
from nocl.experiments.report.summary import estimate
from nocl.results import CONFUSION, RunResult
from tests.support.made_results import result

EVIL = '<script>alert("x")</script>&\'|_%$#{}~^\\[x]'


def seeded(seed: int, base: float, **changes: Any) -> RunResult:
    stream = {"dataset": "glyphs", "partition": "50+2x25", "order_seed": seed, "class_order": [seed]}
    return result(base, seed=seed, params={"seed": seed, "cosine": True}, stream=stream, **changes)


def test_estimate_by_hand_and_by_scipy() -> None:
    found = estimate([1.0, 2.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.std == pytest.approx(math.sqrt(10 / 3))
    low, high = stats.t.interval(0.95, 3, loc=3.0, scale=math.sqrt(10 / 3) / 2)
    assert found.half == pytest.approx((high - low) / 2)
    assert found.half == pytest.approx(3.1824 * math.sqrt(10 / 3) / 2, rel=1e-4)  # t of the printed tables


def test_one_seed_has_no_interval() -> None:
    (row,) = summarise([result()])
    assert (row.seeds, row.acc.std, row.acc.half) == (1, None, None)
    assert "±" not in to_markdown([row]).split("Percent")[0]
    assert "no interval" in to_markdown([row])


def test_seeds_and_orders_are_one_row_with_the_mean() -> None:
    (row,) = summarise([seeded(0, 0.4), seeded(1, 0.6), seeded(2, 0.8)])
    # Acc = (2 base + 0.25 + 0.25) / 4 = 0.325, 0.425, 0.525
    assert row.acc.mean == pytest.approx(0.425)
    assert row.acc.std == pytest.approx(0.1)
    assert row.acc.half == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert row.online_seconds.mean == 3.0
    assert row.state_bytes.mean == 4640
    assert [point.mean for point in row.curve] == pytest.approx([0.6, (2 * 0.6 + 0.25) / 3, 0.425])
    assert "42.5 ± 24.8" in to_markdown([row])


def test_the_same_run_twice_counts_once() -> None:
    (row,) = summarise([seeded(0, 0.4), seeded(0, 0.4), seeded(1, 0.6)])
    assert (row.seeds, len(row.runs)) == (2, 2)


def test_a_repeated_seed_does_not_narrow_the_interval() -> None:
    once = summarise([seeded(0, 0.5), seeded(1, 0.7)])[0]
    (twice,) = summarise([seeded(0, 0.4), seeded(0, 0.6), seeded(1, 0.7)])
    assert twice.acc.half == pytest.approx(once.acc.half)
    assert twice.seeds == 2
    assert twice.note == "3 runs"


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"params": {"seed": 0, "cosine": False}}, "ncm (cosine=false)"),
        ({"base": {"recipe": "sc", "epochs": 3}}, "ncm (base recipe=sc)"),
        ({"method": "slda"}, "slda"),
        ({"tags": {"stores_exemplars": True, "uses_boundaries": False}}, "ncm"),
    ],
)
def test_what_was_chosen_differently_is_another_row(change: dict[str, Any], label: str) -> None:
    rows = summarise([result(0.9), result(0.1, **change)])
    assert len(rows) == 2
    assert rows[1].label == label


def test_what_differs_in_the_recipe_is_named_alone() -> None:
    recipes = [{"objective": "ce", "epochs": 3}, {"objective": "ce", "epochs": 9}]
    rows = summarise([result(base={"recipe": recipe}, params={"recipe": {}}) for recipe in recipes])
    assert {row.label for row in rows} == {"ncm (base recipe.epochs=3)", "ncm (base recipe.epochs=9)"}


def test_weights_of_each_class_order_are_one_row_but_rival_weights_are_two() -> None:
    def run(order: int, weights: str) -> RunResult:
        stream = {"dataset": "glyphs", "partition": "50+2x25", "order_seed": order}
        return result(stream=stream, seed=order, params={"weights": f"some/{weights}"})

    (row,) = summarise([run(0, "order0"), run(1, "order1"), run(2, "order2")])
    assert row.seeds == 3
    (row,) = summarise([run(0, "all"), run(1, "all")])
    assert row.seeds == 2
    rivals = summarise([run(0, "a"), run(1, "a"), run(0, "b"), run(1, "b")])
    assert [row.label for row in rivals] == ["ncm (weights=a)", "ncm (weights=b)"]
    assert [row.seeds for row in rivals] == [2, 2]
    given, trained = summarise([run(0, "order0"), run(1, "order1"), result(method="ncm", params={})])
    assert [given.label, trained.label] == ["ncm (weights=one per class order)", "ncm (weights=trained here)"]


@pytest.mark.parametrize("key", ["dataset", "partition", "batch_size"])
def test_other_streams_are_other_settings(key: str) -> None:
    stream = {"dataset": "glyphs", "partition": "50+2x25", "order_seed": 0, key: "other"}
    rows = summarise([result(), result(stream=stream)])
    assert len({row.setting for row in rows}) == 2
    assert to_markdown(rows).count("## ") == 2


def test_rows_are_sorted_by_acc_and_unfinished_ones_stand_last() -> None:
    rows = summarise([result(0.2, method="b"), result(0.9, done=2, method="a"), result(0.8, method="c")])
    assert [row.first.method for row in rows] == ["c", "b", "a"]
    assert rows[-1].note == "unfinished: 1 of 2 sessions"
    for text in (to_markdown(rows), to_latex(rows), page(rows)):
        assert "unfinished: 1 of 2 sessions" in text


def test_an_unfinished_run_never_enters_the_mean_of_finished_ones() -> None:
    finished, part = summarise([seeded(0, 0.4), seeded(1, 0.9, done=1)])
    assert (finished.seeds, part.seeds) == (1, 1)
    assert finished.base.mean == pytest.approx(0.4)
    assert (part.novel, part.hm, part.forgetting) == (None, None, None)


def test_session_table_by_hand() -> None:
    header, body = session_rows(result(0.5, 0.25))
    assert header == ["Session", "Classes", "Acc", "Base", "Novel", "HM", "Time"]
    assert body[0] == ["base", "2", "50.0", "50.0", "–", "–", "9.00 s"]
    assert body[1] == ["1", "3", "41.7", "50.0", "25.0", "33.3", "1.00 s"]
    assert body[2] == ["2", "4", "37.5", "50.0", "25.0", "33.3", "2.00 s"]
    assert session_table(result()).splitlines()[3] == "| 1 | 3 | 41.7 | 50.0 | 25.0 | 33.3 | 1.00 s |"


def test_csv_reads_back_unrounded() -> None:
    rows = summarise([seeded(0, 1 / 3), seeded(1, 0.9), result(0.1, done=1, method=EVIL)])
    first, second = csv.DictReader(io.StringIO(to_csv(rows)))
    assert float(first["base_mean"]) == rows[0].base.mean
    assert float(first["acc_half95"]) == rows[0].acc.half
    assert (first["seeds"], first["finished"], first["sessions_learned"]) == ("2", "True", "2")
    assert (second["method"], second["novel_mean"], second["acc_std"]) == (EVIL, "", "")


def test_markdown_keeps_its_columns_whatever_the_name() -> None:
    lines = to_markdown(summarise([result(method="a|b\nc")])).splitlines()
    table = [re.split(r"(?<!\\)\|", line) for line in lines if line.startswith("|")]
    assert {len(cells) for cells in table} == {14}


def test_latex_escapes_every_special_character() -> None:
    text = to_latex(summarise([result(method=EVIL)]))
    (line,) = [line for line in text.splitlines() if "script" in line]
    bare = re.sub(r"\\[&%$#_{}]|\\text\w+\{\}|\{\[\}|\{\]\}", "", line.removesuffix(r" \\"))
    assert bare.count("&") == 11  # only those between the twelve columns
    assert not set(bare) & set("%$#_{}~^\\[]<>|")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1


class Reader(HTMLParser):
    """Collects tags, attributes and text, and insists that every tag is closed."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_page_escapes_everything_that_came_from_a_result() -> None:
    evil = result(
        method=EVIL,
        params={EVIL: EVIL, "seed": 0},
        stream={"dataset": EVIL, "partition": EVIL, "order_seed": EVIL},
        base={EVIL: EVIL},
        environment={EVIL: [EVIL]},
        log={"lower_loss": [EVIL], "upper_loss": EVIL},
    )
    found = read(page(summarise([evil, result(params={"seed": 0, "more": EVIL}, method=EVIL)])))
    assert "script" not in found.tags
    assert EVIL in found.words


def test_page_asks_nothing_of_the_network_and_runs_nothing() -> None:
    html = page(summarise([seeded(0, 0.4), seeded(1, 0.5), result(0.6, method="slda")]))
    found = read(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href")]
    assert not re.search(r"https?:|url\(|@import", html)


def test_page_fits_a_phone_and_follows_the_colour_scheme() -> None:
    html = page(summarise([result()]))
    assert '<meta name="viewport" content="width=device-width,initial-scale=1">' in html
    assert "prefers-color-scheme:dark" in html
    assert html.count("<table") == html.count('<div class="scroll"><table')


def test_page_says_what_must_not_be_missed() -> None:
    tags = {"stores_exemplars": True, "uses_boundaries": True}
    words = read(page(summarise([result(tags=tags), result(0.1, done=1, method="slda")]))).words
    for wanted in ("stores exemplars", "uses session boundaries", "unfinished", "One seed each", "2.13"):
        assert wanted in words
    assert "guessing among all of them would reach 25.0 %" in words  # one of four classes
    # base 4 of 20 taken for novel; novel 5 of 10 taken for base
    assert "20.0 % of the images of base classes are taken for novel ones" in words
    assert "50.0 % of the images of novel classes are taken for base ones" in words


def test_page_draws_convergence_only_when_it_was_logged() -> None:
    assert "<h3>lower loss</h3>" not in page(summarise([result()]))
    log = {"lower_loss": [1.0 / (step + 1) for step in range(1000)], "upper_loss": [[1, 0.5], [0.8, 0.4]]}
    words = read(page(summarise([result(log=log)]))).words
    assert "lower loss" in words
    assert "Means of 4 steps." in words
    assert "2 lines." in words


def test_page_shows_how_orthogonal_prototypes_are_before_and_after() -> None:
    log = {"cosine_before": [0.5, 0.25], "cosine_after": [0.4, 0.125]}
    html = page(summarise([result(log=log)]))
    words = read(html).words
    assert "cosine" in words
    assert "At the end: before 0.2500, after 0.1250." in words
    for figure in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(figure)
    one_side = read(page(summarise([result(log={"cosine_before": [0.5]})]))).words
    assert "At the end: before 0.5000." in one_side


def test_every_figure_is_well_formed() -> None:
    log = {"lower_loss": [0.0], "upper_loss": [[], [2.0, 1.0]]}
    html = page(summarise([seeded(0, 0.4), seeded(1, 0.5), result(0.0, 0.0, done=1, method="b"), result(log=log)]))
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(figures) == 5  # the chart, the looks of its two lines, two logged curves
    for figure in figures:
        ET.fromstring(figure)
        assert "nan" not in figure
        assert "inf" not in figure


def test_matrix_leaves_the_unseen_empty() -> None:
    html = page(summarise([result(0.5, 0.25, done=2)]))
    matrix = html.split('<table class="heat">')[1].split("</table>")[0]
    assert re.findall(r'<td style="--v:([\d.]+)">(\d+)</td>', matrix) == [
        ("0.500", "50"),
        ("0.500", "50"),
        ("0.250", "25"),
    ]
    assert matrix.count('<td class="unseen"></td>') == 3  # of two rows and three sessions


def test_confusion_bars_are_the_shares_of_each_kind() -> None:
    html = page(summarise([result(done=1)]))  # base: 10 right, 6 wrong, 4 taken for novel
    bars = re.findall(r'<i class="k-(\w+)" style="height:([\d.]+)%" title="([\d.]+) %">', html)
    assert bars[:3] == [("other", "15.0", "20.0"), ("same", "22.5", "30.0"), ("right", "37.5", "50.0")]


def test_lines_go_through_their_values() -> None:
    drawn = line_chart([Series("a", [0.0, 1.0])], x_label="x", y_label="y")
    assert 'd="M40 164L390 10"' in drawn  # from the lower left to the upper right corner of the frame
    assert re.findall(r"translate\(([\d. ]+)\)", drawn) == ["40 164", "390 10"]  # with a marker at each value


def test_thirty_methods_have_thirty_different_looks_without_colours() -> None:
    rows = summarise([result(index / 40, method=f"method{index}") for index in range(30)])
    legend = page(rows).split('class="legend"')[1].split("</ul>")[0]
    assert len(set(re.findall(r'<svg class="swatch".*?</svg>', legend))) == 30
    looks = [re.sub(r"var\(--c\d\)", "", swatch(index)) for index in range(28)]
    assert len(set(looks)) == 28  # four dashes times seven markers


def test_page_explains_its_measures_where_they_stand_and_folds_the_runs() -> None:
    html = page(summarise([result(), result(0.4, method="slda")]))
    words = read(html).words
    for measure in ("Acc: share of test images", "HM: harmonic mean", "Forgetting: how far"):
        assert measure in words
    assert "<details open" not in html
    folded = html.split("Parameters, base network, stream, environment")[1].split("</details>")[0]
    assert "cosine" in folded


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.123, 0.124), (0.0, 0.0), (5.0, 5.0), (-3.0, 12345.0)])
def test_ticks_cover_the_range(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert marks[0] <= low
    assert high <= marks[-1]
    assert 2 <= len(marks) <= 8
    assert marks == sorted(set(marks))


def test_write_report_writes_four_files_the_same_every_time(tmp_path: Path) -> None:
    runs = [seeded(0, 0.4), seeded(1, 0.5), result(0.6, method="slda")]
    first = write_report(runs, tmp_path / "a")
    second = write_report(list(reversed(runs)), tmp_path / "b")
    assert list(first) == ["report.html", "table.md", "table.csv", "table.tex"]
    for name, path in first.items():
        assert path == tmp_path / "a" / name
        assert path.read_bytes() == second[name].read_bytes()


def test_write_report_without_results_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one result"):
        write_report([], tmp_path)


def test_page_of_a_stream_without_a_base_session() -> None:
    rows = [[None, None, None], [None, 0.5, None], [None, 0.5, 0.25]]
    none = dict.fromkeys(CONFUSION, 0)
    some = {**none, "novel_right": 3, "novel_as_novel": 1}
    run = result(
        session_classes=((), (2,), (3,)),
        accuracy=rows,
        class_accuracy=[row[1:] for row in rows],
        confusion=[none, some, some],
    )
    words = read(page(summarise([run]))).words
    assert "No base session, then 2 classes in 2 sessions" in words
    assert "(0 is the base)" not in words
