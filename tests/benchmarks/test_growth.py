"""Growth: real points of a tiny size, exponents of made numbers, and plots that are the same every time."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth, growth_plots, growth_side
from benchmarks.growth import AXES, COSTS, SIZES, Point

TINY = Point(hidden=96, layers=2, vocabulary=128, trajectories=3, new_tokens=5)


# ------------------------------------------------------------------------------------------------ what is measured


@pytest.mark.soak
def test_points_are_measured_in_processes_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--size", "tiny", "--axes", "new_tokens", "--threads", "1", "--out", str(tmp_path)]
    assert growth.main(arguments) == 0
    said = capsys.readouterr()
    assert said.err.count(": done in ") == 2
    assert "| exponent | " in said.out
    result = json.loads((tmp_path / "growth-tiny.json").read_text(encoding="utf-8"))
    (axis,) = result["axes"]
    assert [point["new_tokens"] for point in axis["points"]] == [4, 16]
    for point in axis["points"]:
        assert point["decode_s"] > 0 < point["train_s"]
        assert point["tokens_per_s"] * point["decode_s"] == pytest.approx(4 * point["new_tokens"])
        assert point["decode_step_s"] * point["new_tokens"] == pytest.approx(point["decode_s"])
        assert point["step_s"] >= point["decode_s"] + point["train_s"]
        assert 0.1 < point["libraries_gb"] < point["rollout_peak_gb"] < 1.02 * point["peak_gb"]
    # Models are thrown away with their processes.
    assert sorted(path.suffix for path in (tmp_path / "parts").iterdir()) == [".json", ".json"]
    image = tmp_path / "growth-tiny" / "growth-new-tokens.svg"
    drawn = image.read_bytes()
    image.unlink()
    assert growth.main(arguments) == 0
    assert capsys.readouterr().err.count(": kept from ") == 2
    assert image.read_bytes() == drawn
    # Drawing alone needs no parts, only what they were put together to.
    monkeypatch.setattr(growth, "measure", None)
    assert growth.main([*arguments, "--replot", "--images", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / image.name).read_bytes() == drawn
    assert growth.main(["--replot", "--out", str(tmp_path)]) == 1
    assert "growth.json to draw; hint: " in capsys.readouterr().err


def test_a_step_does_the_work_that_its_point_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growth_side.make_model(tmp_path, TINY)
    done: list[Any] = []
    step = growth_side.ppo_step

    def seen(*arguments: Any) -> Any:
        done.append(step(*arguments))
        return done[-1]

    monkeypatch.setattr(growth_side, "ppo_step", seen)
    part = growth_side.measure(TINY, growth_side.make_config(tmp_path, TINY, 1), 2, 0.0)
    # A layer: 8/3 + 8 squares of the width and two norms; the embedding is the output layer too.
    assert part["parameters"] == 128 * 96 + 2 * (96 * 96 * 32 // 3 + 2 * 96) + 96
    assert (len(part["steps"]), len(done)) == (2, 3)
    for result, step_part in zip(done[1:], part["steps"], strict=True):
        assert result.sampled.lengths.tolist() == [growth_side.PROMPT_TOKENS + 5] * 3
        assert (result.report.metrics["policy/updates"], result.report.metrics["score/mean"]) == (1, 5.0)
        assert {"rollout", "score", "update"} <= set(step_part["clock"])
    longer = growth_side.measure(TINY, growth_side.make_config(tmp_path, TINY, 1), 1, 0.3)
    assert len(longer["steps"]) > 2


def test_prompts_have_nothing_in_common() -> None:
    for vocabulary, trajectories in ((4_096, 64), (27, 3)):
        point = Point(96, 1, vocabulary, trajectories, 4)
        tokens = [token for prompt in growth_side.make_prompts(point) for token in prompt.tokens]
        assert len(set(tokens)) == len(tokens) == trajectories * growth_side.PROMPT_TOKENS
    with pytest.raises(ValueError, match="26 words are too few for 3 prompts"):
        growth_side.make_prompts(Point(96, 1, 26, 3, 4))
    codec, (prompt, *_) = growth_side.make_codec(4_096), growth_side.make_prompts(Point(96, 1, 4_096, 2, 4))
    assert codec.encode_prompt(prompt.text) == (list(prompt.tokens), prompt.text)


@pytest.mark.parametrize("name", SIZES)
def test_each_axis_varies_one_thing_and_grows(name: str) -> None:
    size = SIZES[name]
    assert list(size.axes) == list(AXES)
    # The base lies on every axis, so it is measured once for all of them.
    (base,) = set.intersection(*(set(points) for points in size.axes.values()))
    for axis, points in size.axes.items():
        varied = {"hidden", "layers"} if axis == "parameters" else {axis}
        for point in points:
            differs = {key for key in vars(base) if getattr(point, key) != getattr(base, key)}
            assert point == base or differs <= varied
        grows = [tuple(getattr(point, key) for key in sorted(varied)) for point in points]
        assert grows == sorted(set(grows))
        assert len(points) >= (3 if name == "full" else 2)


# ---------------------------------------------------------------------------------------------------- what is fitted


def test_exponents_of_made_numbers() -> None:
    assert growth.exponent((2.0, 3.0), (8.0, 48.0)) == pytest.approx(2.0)
    assert growth.exponent((10.0, 7.0), (1_000.0, 7.0)) == 0.0
    assert growth.exponent((4.0, 10.0), (16.0, 5.0)) == pytest.approx(-0.5)
    for first, last in (((2.0, 0.0), (4.0, 1.0)), ((2.0, 1.0), (2.0, 2.0)), ((-2.0, 1.0), (2.0, 2.0))):
        with pytest.raises(ValueError, match="no power law"):
            growth.exponent(first, last)


def made_axis(name: str = "new_tokens", xs: tuple[int, ...] = (32, 64, 512)) -> dict[str, Any]:
    """Decoding grows with the root, training with the square and at last with the cube, memory not at all."""
    points = [{name: x, "decode_s": 0.3 * math.sqrt(x), "train_s": x**2 / 1e3, "spoiled": False} for x in xs]
    points = [{**p, "rollout_peak_gb": 0.6, "peak_gb": 0.9, "tokens_per_s": 1e3, "decode_step_s": 0.01} for p in points]
    points[-1]["train_s"] = points[-2]["train_s"] * (xs[-1] / xs[-2]) ** 3
    return growth.axis_result(name, points)


def test_exponents_of_an_axis_are_of_its_ends_and_of_its_last_two_points() -> None:
    axis = made_axis()
    assert set(axis["exponents"]) == set(COSTS)
    assert axis["exponents"]["decode_s"] == pytest.approx(0.5)
    # Two doublings with 2 and 6, over 4 doublings in all.
    assert axis["exponents"]["train_s"] == pytest.approx((2 * 1 + 3 * 3) / 4)
    assert axis["exponents_at_the_end"]["train_s"] == pytest.approx(3.0)
    assert axis["exponents"]["peak_gb"] == axis["exponents_at_the_end"]["peak_gb"] == 0.0


def test_a_row_is_the_median_of_its_steps_and_the_largest_peak() -> None:
    seconds, peaks = [(1.0, 4.0), (3.0, 6.0), (2.0, 9.0)], [1.5, 2.5, 2.0]
    steps = [
        {"clock": {"rollout": r, "score": 0.5, "update": u}, "peak_gb": peak}
        for (r, u), peak in zip(seconds, peaks, strict=True)
    ]
    facts = {"rollout_peak_gb": 0.7, "libraries_gb": 0.3, "parameters": 9, "other_cores": 0.2, "spoiled": True}
    row = growth.row(TINY, {"steps": steps, **facts})
    assert (row["decode_s"], row["train_s"], row["step_s"], row["peak_gb"]) == (2.0, 6.0, 9.5, 2.5)
    assert (row["decode_step_s"], row["tokens_per_s"]) == (2.0 / 5, 3 * 5 / 2.0)
    spoiled = growth.markdown({"axes": [{**made_axis(), "points": [{**made_axis()["points"][0], "spoiled": True}]}]})
    assert spoiled.count("SPOILED") == 1


# --------------------------------------------------------------------------------------------------- what is drawn


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    result = {"machine": {"threads": 2}, "axes": [made_axis(), made_axis("parameters", (8_000_000, 360_000_000))]}
    first = growth_plots.draw(result, tmp_path / "first")
    again = growth_plots.draw(json.loads(json.dumps(result)), tmp_path / "again")
    assert [file.name for file in first] == ["growth-new-tokens.svg", "growth-parameters.svg"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]
    result["axes"][0]["points"][1]["train_s"] *= 1.1
    changed = growth_plots.draw(result, tmp_path / "changed")
    assert [a.read_bytes() == b.read_bytes() for a, b in zip(first, changed, strict=True)] == [False, True]


def test_settings_of_the_reader_change_no_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    before = growth_plots.svg(made_axis(), 2)
    with mpl.rc_context({"axes.linewidth": 4.0, "xtick.direction": "in", "svg.hashsalt": "other", "font.size": 30}):
        assert growth_plots.svg(made_axis(), 2) == before
        assert mpl.rcParams["font.size"] == 30


def test_a_plot_says_what_is_on_its_axes_and_when_it_was_made_it_does_not() -> None:
    drawn = growth_plots.svg(made_axis(), 2).decode()
    texts = [
        "".join(text.itertext()) for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {"new tokens of a trajectory", "seconds in a step", "peak memory, GB", "32", "64", "512"} <= set(texts)
    assert {"decoding: exponent 0.50", "training pass: exponent 2.75", "step: exponent 0.00"} <= set(texts)
    assert "Cost by new tokens of a trajectory (2 CPU threads)" in texts
    assert re.search(r"20\d\d-\d\d-\d\d|dc:date|Matplotlib v", drawn) is None


def test_text_and_lines_stand_out_from_the_ground() -> None:
    ground = growth_plots.GROUND
    drawn = growth_plots.svg(made_axis(), 2).decode()
    # The first shape covers the whole image: what lies behind it does not matter.
    assert f'style="fill: {ground}"' in drawn[: drawn.index('id="axes_1"')]
    texts = re.findall(r"<text [^>]*>", drawn)
    assert len(texts) > 10
    assert all(f"fill: {growth_plots.INK}" in text for text in texts)
    assert contrast(growth_plots.INK, ground) > 12
    for _, lines in growth_plots.PANELS:
        assert all(contrast(colour, ground) > 4.5 for _, _, colour, _, _ in lines)
        assert len({(marker, dashes) for *_, marker, dashes in lines}) == len(lines)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.9, 0.95, [0.5, 1.0]),
        (1.0, 1.0, [1.0, 2.0]),
        (0.03, 4.0, [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]),
        (5.0, 20.0, [5.0, 10.0, 20.0]),
        (100.0, 101.0, [100.0, 200.0]),
    ],
)
def test_ticks_enclose_the_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert growth_plots.nice_ticks(low, high) == ticks


def test_numbers_in_short() -> None:
    shown = {512: "512", 4_096: "4k", 131_072: "128k", 123_168: "123k", 7_864_512: "8M", 359_800_000: "360M"}
    assert {number: growth_plots.short(number) for number in shown} == shown
