"""Metrics from plain output: what is certain is read, and nothing else."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import pytest

from jobsubmit.metrics.collection import Metrics
from jobsubmit.metrics.model import Point
from jobsubmit.metrics.reader import MetricsReader

RANK = (0, 0)
RULE = "-" * 30


def read(*lines: str) -> Metrics:
    metrics = Metrics()
    for number, line in enumerate(lines):
        for _ in metrics.read(RANK, float(number), line):
            pass
    return metrics


def values(metrics: Metrics) -> dict[str, list[float]]:
    return {series.name: [point.value for point in series.points] for series in metrics.series()}


def test_a_series_has_the_counters_of_its_lines() -> None:
    metrics = read("epoch 1 step 10/50 loss 2.5", "epoch 1 step 20/50 loss 2.25")
    (series,) = metrics.series()
    assert series.points == [Point(0.0, 1.0, 10, 2.5), Point(1.0, 1.0, 20, 2.25)]
    (progress,) = metrics.progress().values()
    assert (progress.step, progress.steps, progress.epoch, progress.epochs) == (20, 50, 1.0, None)


def test_a_title_gives_the_next_line_the_step_above_it() -> None:
    metrics = read("step 1 loss 0.5", "step 2 loss 0.4", "valid result:", "f1 0.1 recall 0.3")
    (f1,) = (series for series in metrics.series() if series.name == "valid_f1")
    assert f1.points == [Point(3.0, None, 2, 0.1)]


@pytest.mark.parametrize("who", ["rank 1/2", "[GPU 1/8]", "Worker 3 of 8:", "node 0/2 -"])
def test_which_process_a_line_is_of_is_no_progress(who: str) -> None:
    metrics = read(*(f"{who} step {step} loss {2.5 - step / 10}" for step in range(4)))
    (progress,) = metrics.progress().values()
    assert (progress.step, progress.steps) == (3, None)
    assert values(metrics) == {"loss": [2.5, 2.4, 2.3, 2.2]}


def test_failed_assertions_of_a_gpu_kernel_are_no_series() -> None:
    text = (
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:90: operator(): block: [0,0,0], thread: [{},0,0] Assertion `x >= 0`"
    )
    assert not values(read(*(text.format(thread) for thread in range(3))))


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(lr=0.1, epochs=10, loss_weight=0.5)",
        "config: learning_rate: 0.1, warmup_steps: 100",
        "Epoch 1/12 : FROM python",
        "Map:  50%|█████     | 500/1000 [00:01<00:01, 500.00 examples/s]",
        "Saved checkpoint at epoch 3 with loss 0.5",
        "loss: 0.5",
        "listening on 127.0.0.1:29500, rank 3 of 8",
    ],
)
def test_one_line_that_may_be_anything_is_no_series(line: str) -> None:
    assert not values(read(line))
    assert not read(line).progress()


def test_settings_before_a_training_are_none_of_its_values() -> None:
    metrics = read("lr: 0.5", "step_size: 30", "step 1 loss 2 lr 0.1", "step 2 loss 1 lr 0.1")
    assert values(metrics) == {"loss": [2, 1], "lr": [0.1, 0.1]}


def test_validation_is_a_series_of_its_own() -> None:
    lines = [f"Epoch {epoch} loss {1 / (epoch + 1)}" for epoch in range(3)]
    lines.insert(2, "Test set: loss: 0.75, accuracy: 80.5%")
    assert values(read(*lines))["test_loss"] == [0.75]
    assert values(read(*lines))["test_accuracy"] == [80.5]


def test_a_loss_that_is_no_number_is_kept_as_it_is() -> None:
    found = values(read("step 1 loss 0.5", "step 2 loss nan", "step 3 loss inf"))["loss"]
    assert found[0] == 0.5
    assert math.isnan(found[1])
    assert found[2] == math.inf


def test_a_bar_counts_where_it_is_about_the_training() -> None:
    bars = [f"{10 * n}%|{'█' * n}{' ' * (10 - n)}| {n}/10 [00:0{n}<00:09,  1.0it/s, loss={n / 4}]" for n in (1, 2, 3)]
    metrics = read("Filter: 10%|█         | 1/10 [00:01<00:09, 1.0 examples/s]", *bars)
    assert values(metrics) == {"loss": [0.25, 0.5, 0.75]}
    (progress,) = metrics.progress().values()
    assert (progress.step, progress.steps) == (3, 10)


def test_a_table_gives_its_columns() -> None:
    metrics = read("  step |   loss |     lr", "     1 |   2.50 |  1e-3", "     2 |   2.25 |  2e-3")
    assert values(metrics) == {"loss": [2.5, 2.25], "lr": [0.001, 0.002]}


def points(metrics: Metrics) -> dict[str, list[tuple[float | None, int | None, float]]]:
    return {series.name: [(p.epoch, p.step, p.value) for p in series.points] for series in metrics.series()}


def test_a_table_of_commas_may_have_empty_cells() -> None:
    metrics = read("epoch,train_mse,val_mse,lr,seconds", "1,0.68,,9.7e-05,11.5", "2,0.66,0.89,9.4e-05,11.6")
    assert values(metrics) == {
        "train_mse": [0.68, 0.66],
        "lr": [9.7e-05, 9.4e-05],
        "val_mse": [0.89],
        "seconds": [11.5, 11.6],
    }
    assert [point.epoch for point in metrics.series()[0].points] == [1.0, 2.0]


def test_a_table_of_results_leaves_the_step_as_it_is() -> None:
    rows = [
        "| epoch | step | loss |",
        "| 1 | 100 | 3.5 |",
        "| 1 | 200 | 3.25 |",
        "| epoch | R@1 | R@5 |",
        "| 1 | 50.5 | 75.5 |",
    ]
    metrics = read(*rows)
    assert values(metrics) == {"loss": [3.5, 3.25], "r@1": [50.5], "r@5": [75.5]}
    (progress,) = metrics.progress().values()
    assert (progress.epoch, progress.step) == (1.0, 200)


def test_a_row_of_results_is_of_the_epoch_above() -> None:
    lines = [
        "   Epoch    GPU_mem   box_loss   cls_loss",
        "    {}/5      2G     {}.5     {}.25",
        "   Class     Images  Instances       P       R   mAP50   mAP50-95",
        "    all   128    929    0.{}    0.5    0.5    0.3",
    ]
    metrics = read(*(line.format(n, n, n) for n in (1, 2) for line in lines))
    (series,) = [one for one in metrics.series() if one.name == "p"]
    assert [(point.epoch, point.step) for point in series.points] == [(1, None), (2, None)]


def test_a_fold_is_no_epoch() -> None:
    metrics = read(
        "fold 1/5  epoch 24/25  train_rmse=1.5",
        "fold 1/5  epoch 25/25  train_rmse=1.25",
        "fold 2/5  epoch 1/25  train_rmse=2",
    )
    assert [point.epoch for point in metrics.series()[0].points] == [24.0, 25.0, 1.0]


def test_a_counter_and_its_total_may_have_units() -> None:
    metrics = read("[default0]:[1.75K/50K] loss 8.5 tokens 98M", "[default0]:[2K/50K] loss 8.25 tokens 115M")
    assert [point.step for point in metrics.series()[0].points] == [1750, 2000]
    (progress,) = metrics.progress().values()
    assert (progress.step, progress.steps) == (2000, 50_000)


def test_each_state_of_a_line_that_is_written_again_counts() -> None:
    states = (f"Epochs: {n * 10}%|##  | {n}/10 [00:04<02:19, 4.8s/it, t_loss={6 - n / 4}]" for n in range(4))
    assert values(read("\r".join(states))) == {"t_loss": [6.0, 5.75, 5.5, 5.25]}


def test_a_batch_with_results_behind_it_is_a_step() -> None:
    metrics = read("Batch     100: trn: rmse = 2.5, lr = 0.1", "Batch     200: trn: rmse = 2.25, lr = 0.1")
    assert [(point.step, point.value) for point in metrics.series()[0].points] == [(100, 2.5), (200, 2.25)]
    assert not values(read("batch: 100", "batch: 100, rmse = 2", "batch size 100"))


def test_a_dictionary_over_several_lines_has_the_counter_of_its_headline() -> None:
    blocks = [
        [f"Step {step}", f"{{'Loss/total': {step / 8},", f" 'Loss/box': {step / 16},", " 'lr': 0.5}"]
        for step in (100, 200)
    ]
    metrics = read(*blocks[0], *blocks[1])
    assert values(metrics) == {"loss_total": [12.5, 25], "loss_box": [6.25, 12.5], "lr": [0.5, 0.5]}
    assert {point.step for series in metrics.series() for point in series.points} == {100, 200}


def test_a_long_name_of_a_block_may_begin_at_the_left() -> None:
    block = [
        "Learning iteration {}/300",
        "  Mean value loss: {}.5",
        "Episode_Reward/long_name: {}.25",
        "  Mean lr: 0.1",
    ]
    metrics = read(*(line.format(n) for n in (1, 2) for line in block))
    assert values(metrics)["episode_reward_long_name"] == [1.25, 2.25]
    assert {point.step for series in metrics.series() for point in series.points} == {1, 2}


def test_a_chinese_unit_is_no_part_of_the_next_name() -> None:
    line = "轮次: [1/8] 总损失: {}.5 每步耗时: 0.3秒 显存占用: 9.8G"
    assert set(values(read(line.format(1), line.format(2)))) == {"总损失", "每步耗时", "显存占用"}


def test_the_steps_below_a_headline_are_of_its_epoch() -> None:
    lines = ["Epoch {}/5", "1/40 - loss: {}.5", "20/40 - loss: {}.25"]
    metrics = read(*(line.format(n) for n in (1, 2) for line in lines))
    assert [(point.epoch, point.step) for point in metrics.series()[0].points] == [(1, 1), (1, 20), (2, 1), (2, 20)]


def test_a_room_of_a_box_is_before_its_names() -> None:
    box = [RULE, "| eval/ |     |", "|   mean_reward | {}1 |", "| time/ |   |", "|   total_timesteps | {}0 |", RULE]
    metrics = read(*(line.format(n, n) for n in (1, 2) for line in box))
    assert values(metrics) == {"eval_mean_reward": [11, 21]}


@pytest.mark.parametrize("line", ["tokens per step: 98,304", "images_per_gpu = 16", "setting loss scale to: 64.0"])
def test_what_a_step_takes_is_a_setting(line: str) -> None:
    assert list(values(read("step 1 loss 2", "step 2 loss 1", line, line, line))) == ["loss"]


def test_a_box_is_read_as_one_line() -> None:
    rule = "-" * 24
    boxes = [
        [
            rule,
            "| train/      |          |",
            f"|    loss     | {loss}  |",
            f"|    step     | {step}  |",
            "| kl | 0.5 |",
            rule,
        ]
        for step, loss in ((0, 2.5), (10, 2.25))
    ]
    metrics = read("starts", *boxes[0], "saving model 0", *boxes[1])
    assert points(metrics) == {"loss": [(None, 0, 2.5), (None, 10, 2.25)], "kl": [(None, 0, 0.5), (None, 10, 0.5)]}
    (progress,) = metrics.progress().values()
    assert progress.step == 10


def test_a_box_without_a_counter_or_a_result_is_none() -> None:
    rule = "-" * 24
    assert not values(read(*[rule, "| lr | 0.5 |", "| step_size | 3 |", rule] * 3))
    assert not values(read(rule, "| step | 5 |", "| files | 3 |", rule))
    lines = ("| loss | 0.5 |", "Traceback", "step 1 loss 2", "step 2 loss 1")
    assert values(read(rule, *lines)) == values(read(*lines))  # one that does not end


def test_the_lines_of_a_block_have_the_counters_of_its_headline() -> None:
    metrics = read(
        *("Epoch 1/30 (21.4s)", "    train:  loss=0.5  dice=0.25", "    valid:  loss=0.75  dice=0.125", "* new best"),
        *("Epoch 2/30 (21.4s)", "    train:  loss=0.25  dice=0.5", "    valid:  loss=0.5  dice=0.25"),
    )
    found = points(metrics)
    assert found["loss"] == [(1, None, 0.5), (2, None, 0.25)]
    assert found["valid_loss"] == [(1, None, 0.75), (2, None, 0.5)]


def test_a_headline_counts_for_the_next_line_only() -> None:
    metrics = read("Epoch 1/3", "41s - loss: 0.5", "loss: 0.25", "Epoch 2/3", "40s - loss: 0.125")
    assert points(metrics)["loss"][0] == (1, None, 0.5)
    assert points(metrics)["loss"][-1] == (2, None, 0.125)
    assert (1, None, 0.25) not in points(metrics)["loss"]


def test_a_headline_may_stand_in_the_middle_of_its_line() -> None:
    block = (
        "          Learning iteration {0}/100          ",
        "",
        "   Computation: 6 steps/s",
        "   Mean reward: -2.{0}",
    )
    metrics = read(*(line.format(number) for number in (1, 2) for line in block))
    assert points(metrics)["mean_reward"] == [(None, 1, -2.1), (None, 2, -2.2)]


def test_a_cell_of_a_table_may_be_a_dash() -> None:
    metrics = read("  step   loss   val_loss", "   10   2.5   -", "   20   2.25   0.5", "   30   2.0   -")
    assert values(metrics) == {"loss": [2.5, 2.25, 2.0], "val_loss": [0.5]}


def test_the_unit_of_a_chinese_counter_is_no_part_of_a_name() -> None:
    metrics = read("第 1/5 轮 第 100/200 步 损失:2.5", "第 1/5 轮 第 200/200 步 损失:2.25")
    assert points(metrics) == {"损失": [(1, 100, 2.5), (1, 200, 2.25)]}


def test_lines_below_a_line_with_a_loss_are_about_something_else() -> None:
    line = " iteration {0}/ 100 | lm loss: 2.{0} |"
    metrics = read(
        line.format(1), "    forward-backward: (1.5, 2.5)", line.format(2), "    forward-backward: (1.5, 2.5)"
    )
    assert set(values(metrics)) == {"lm_loss"}


def test_each_rank_has_its_own_series() -> None:
    metrics = Metrics()
    for step in (1, 2):
        for rank in (1, 0):
            list(metrics.read((0, rank), 0.0, f"step {step} loss {step + rank}"))
    assert [(series.source, len(series.points)) for series in metrics.series()] == [((0, 0), 2), ((0, 1), 2)]


def test_colours_and_prefixes_are_no_part_of_a_name() -> None:
    line = "\x1b[32m2026-11-23 09:13:17.177\x1b[0m | INFO | __main__:train:131 - step {}/98: loss=0.5"
    assert values(read(line.format(1), line.format(2))) == {"loss": [0.5, 0.5]}


@pytest.mark.parametrize(
    "line", ["loss " * 300_000, "\x00\xff step 1 \x1b[", "9" * 5000, "step 1e999 loss 1e999", "∞ 步"]
)
def test_no_line_is_too_strange(line: str) -> None:
    read(line, line, "step 1 loss 2", line, "step 2 loss 1")


@pytest.mark.parametrize("piece", [" ", "- ", "[", "第1", "1:", "loss ", "((((1", "|1|", "2024-01-01 "])
def test_no_line_takes_long(piece: str) -> None:
    lines = [f"step {number} {piece * (3900 // len(piece))} loss {number}" for number in range(20)]
    began = time.process_time()
    read(*lines)
    assert time.process_time() - began < 3  # a quadratic pattern takes more


@pytest.mark.parametrize("name", ["<script>alert()</script>", "$(id)`id`", "[red]x[/red]", "../../x", "\x1b]0;t\x07y"])
def test_a_hostile_name_keeps_letters_only(name: str) -> None:
    found = values(read(f"step 1 loss: 0.5, {name}: 3", f"step 2 loss: 0.25, {name}: 4"))
    assert found["loss"] == [0.5, 0.25]
    assert all(sign.isalnum() or sign in "_@" for series in found for sign in series)


def test_memory_is_bounded_by_points_and_names() -> None:
    metrics = Metrics()
    for step in range(50_000):
        for _ in metrics.read(RANK, 0.0, f"step {step} loss {step}"):
            pass
    (series,) = metrics.series()
    assert series.count == 50_000
    assert len(series.points) <= 10_001
    assert {after.value - before.value for before, after in pairwise(series.points)} == {series.every}
    assert series.last.value == 49_999
    names = Metrics()
    for step in range(3000):
        list(names.read(RANK, 0.0, f"step {step} loss 1 name{step}x: 2"))
    assert len(names.series()) <= 101


def test_a_reader_yields_each_value_once() -> None:
    reader = MetricsReader()
    found = [
        (reading.name, reading.point.step)
        for step in range(100)
        for reading in reader.read(RANK, 0.0, f"step {step} loss 1.5 lr 0.1")
    ]
    assert found == [(name, step) for step in range(100) for name in ("loss", "lr")]


def test_the_summary_of_a_validation_is_no_value_of_the_training() -> None:
    metrics = read(
        "Epoch: [0]  [0/4]  eta: 0:00:11  lr: 0.000001  loss: 7.1399 (7.1399)  time: 2.7952  data: 0.3331",
        "Epoch: [0]  [3/4]  eta: 0:00:02  lr: 0.000001  loss: 7.0075 (7.0124)  time: 2.1129  data: 0.0908",
        "Test:  [0/3]  eta: 0:00:03  loss: 7.0834 (7.0834)  acc1: 0.0000 (0.0000)  time: 1.2190  data: 0.3588",
        "* Acc@1 0.000 Acc@5 0.000 loss 6.899",
        "Epoch: [1]  [0/4]  eta: 0:00:02  lr: 0.000001  loss: 6.9730 (6.9730)  time: 2.1129  data: 0.0908",
    )
    assert values(metrics)["loss"] == [7.1399, 7.0075, 6.973]
