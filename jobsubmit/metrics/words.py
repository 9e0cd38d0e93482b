"""What the names in a training's output mean: which count steps or epochs, which are losses, which are no figures."""

from __future__ import annotations

import re
from functools import lru_cache

_REMEMBERED = 4096  # names

_STEP_WORDS = (
    r"(?:(?:train(?:ing)?|val\w*|eval\w*|test|global|current|cur|optimi[sz]er|opt|gradient|total)[\s_/])?"
    r"(?:steps?|iter(?:s|ation|ations)?|n?updates?|num_updates|batch|minibatch|mini-batch|global_?step|(?:total_|num_)?timesteps|it|tick)"
    r"|micro_step|micro_batch|step_in_(?:epoch|slice)|batch_in_epoch|(?:(?:训练|当前|全局)[\s_]?)?(?:步数?|步骤|迭代(?:次数|步数)?|批次|批)|バッチ|ステップ"
    r"|global_step/max_steps"
)
_EPOCH_WORDS = (
    r"(?:(?:train(?:ing)?|val\w*|eval\w*|test|current)[\s_])?(?:epoch(?:\sloaded)?|ep)"
    r"|(?:(?:训练|当前|开发集|验证集?|测试集?|评估)[\s_]?)?(?:轮次?|轮数|周期|回合)"
)
_ROOM = r"(?:(?:trainer|train|training)/)?"
_STEP = re.compile(rf"{_ROOM}(?:{_STEP_WORDS})(?:\(\w+\))?|trainer/steps_train", re.IGNORECASE)
_EPOCH = re.compile(rf"{_ROOM}(?:{_EPOCH_WORDS})(?:\(\w+\))?|エポック", re.IGNORECASE)
_STEP_AT_END = re.compile(rf"(?:^|[^\w/]|第)(?:{_STEP_WORDS})$", re.IGNORECASE)
_EPOCH_AT_END = re.compile(rf"(?:^|[^\w/]|第)(?:{_EPOCH_WORDS}|エポック)$", re.IGNORECASE)
_COUNTED = re.compile(
    r"(?:^|_)(?:port|version|epochs|addr|eta\w*|elapsed|remaining|date|left|percent(?:age)?|z_score)$"
    r"|(?:^|_)step_in_(?:epoch|slice)$|(?:^|_)time_(?:batch|sample|token|epoch)(?:_in_epoch)?$|^(?:dp|tp|pp|cp)$|^(?:ts|timestamp|rank|local_rank|world_size|workers|pid|v_num|nodes?|gpus?|cuda|time_left|wall|wall_time|walltime"
    r"|(?:\w+_)?tokens|bytes|batches|done|finished|completed|train_wall|train_time|time_elapsed|of|to|and|in|code|last_best|times_last_best|lines?|size|from|by|id|level|job|size_\w+|progress|epoch_train|epoch_valid|ms|s|sec|secs|m|h|g|gb|mb|k|共|秒|分|分钟|时|小时|天|日"
    r"|trainer|engine|runner|utils|剩余时间|预计剩余|已用时间|总步数|总轮数|总步|显卡|卡|进程|proc|process)$|提升|^setting_|(?:^|_)num_itrs$"
    r"|^(?:max(?!_mem)|num|n|warmup|total(?!\w*loss)|eta|elapsed(?!\w*_per_)|consumed|remaining|estimated|tests?_passed)_"
    r"|_(?:py|iters|steps)$|^(?:save|log|logging|accumulation)_|^(?:train|eval|test)_(?:steps(?!_per|_s)|batch|num|max)_"
)
_SETTING = re.compile(
    r"(?:^|_)max_(?!mem)\w+$|(?:^|_)(?:weight|coef[a-z]*|alpha|beta|lambda|ratio|type|fn|func[a-z]*|gamma|smooth[a-z]*|factor|reduction|ignore[a-z]*|threshold"
    r"|window|interval|freq[a-z]*|every|warmup[a-z]*|decay|seed|device|patience|dropout|parameters|(?<!l2_)params|number_of_\w+|tokens_seen|batch_size)$"
    r"|(?:tokens|samples|images|batch\w*)_per_(?:step|batch|iter\w*|update|gpu|device|rank)$"
    r"|^(?:imgsz|image_size|batch_?size)$|^(?:target|start|init\w*|min|minimum|final|early|stop)_"
)
_TOTAL_EPOCHS = re.compile(r"(?:num|max|n|total|number_of)_(?:train(?:ing)?_)?epochs|epochs|总轮数|总轮次")
_TOTAL_STEPS = re.compile(
    r"(?:num|max|n|total|number_of)_(?:train(?:ing)?_|optimi[sz]ation_|update_)?(?:steps|iters|iterations)"
    r"|(?:n|num)_batches|batches_per_epoch|steps_per_epoch|train_iters|train_steps|总步数"
)
_LOSS = re.compile(
    r"(?:^|_)loss(?:es)?(?:_|$)|loss$|^loss|损失|(?:^|_)(?:nll|elbo|xent|mse|mae|rmse|kl|objf)(?:_|$)|cross_?entropy|ロス"
)
_KNOWN = re.compile(
    r"(?:^|_)(?:lr|l_r|learning_?rate|acc(?!um)\w*|accuracy|ppl|perplexity|grad(?:ient)?_?norm|gnorm|norm|bleu|f1|auc\w*|auroc|rew\w*|map\w*|miou|iou|"
    r"precision|recall|dice|psnr|ssim|lpips|fid|wer|cer|reward|ep(?:isod\w*)?_return|mean_return|bpb|bpc|bits|wps|ups|tps|sps|tgs|tflops?|mfu|throughput|error|err|"
    r"top\d*|score|cost|r2|rouge\w*|loss_?scale|ndcg|mrr|hits?(?=@))(?:[_@]|$)|acc@|(?:^|_)(?:r|p|hr|mrr|ndcg)@\d|perplexity$|准确率|召回率|精确率|字错率|词错率|精度|学习率|困惑度|吞吐|速度|梯度范数|正確率|学習率"
)
_CONDITION = re.compile(
    r"(?:^|_)(?:lr|l_r|learning_?rate|grad(?:ient)?_?norm|gnorm|norm|bits|wps|ups|tps|sps|tgs|tflops?|mfu|throughput|loss_?scale|err|error)(?:_|$)"
    r"|学习率|吞吐|速度|梯度范数|学習率|缩放"
)
_WEAK = re.compile(
    r"(?:^|_)(?:time|data|ms_batch|speed|mem|memory|wd|wps|tok|tokens?|samples?|sec|ms|dt|s|fps|mom|momentum|temp)$"
    r"|(?:time|speed)_(?:it|iter|step|batch)$|^(?:data|time|mem\w*|sec|samples|tokens|tok|steps?|img|images)_\w+$"
    r"|显存|内存|用时|耗时"
)
_SCHEDULE = re.compile(r"(?<=^lr)\(\w+\)$", re.IGNORECASE)
_UNIT_FIRST = re.compile(r"^(?:步|轮次?|次|批次?)_(?=.)")  # of the counter before: 第 100 步 损失
_PREPARATION_LINE = re.compile(r"清洗|去重|预处理|tokeniz|dedup|preprocess", re.IGNORECASE)
_HINTS = (
    "loss",
    "step",
    "epoch",
    "iter",
    "acc",
    "batch",
    "lr",
    "/s",
    "|",
    "auc",
    "f1",
    "err",
    "ppl",
    "train",
    "val",
    "test",
)
_MORE_HINTS = (
    "tick",
    "bleu",
    "score",
    "learning",
    "iou",
    "map",
    "update",
    "reward",
    "norm",
    "tps",
    "mfu",
    "wer",
    "ep.",
    "[",
)
_FIGURE_HINTS = (
    *("oss", "cc", "AP", "LOSS", "损失", "R@", "WER", "F1", "mse", "mae", "MSE", "MAE", "auc", "AUC", "ppl"),
    *("recall", "precision", "iou", "IoU", "elbo", "gnorm"),
)
_PAIR = re.compile(r"\s*[A-Za-z][\w/@. -]{0,60}[:=]\s*[-+.\d]")  # a name and a number begin the line
_VALIDATION = re.compile(
    r"(?<![A-Za-z])(val(?:id(?:at\w+)?)?|eval(?:uation|uate(?=\s*[:：]|$))?|test(?:ing)?|dev|cv)(?![A-Za-z])|(验证集?|测试集?|开发集|评估|検証|テスト)",
    re.IGNORECASE,
)
_TITLE = re.compile(
    r"(?<!best )\b(val(?:id(?:ation)?)?|test|eval(?:uation)?|dev)\s(?:results?|metrics?|scores?)\s*[:：]\s*$",
    re.IGNORECASE,
)
_PREPARATION = re.compile(
    r"map|filter|group|download|load|fetch|tokeni[sz]|generat|extract|convert|prepar|process|saving|save|resolv|pars|cach|build|"
    r"scan|read|writ|upload|collect|indexing|shard|sampling|predict|inference|sanity|下载|加载|处理|推理",
    re.IGNORECASE,
)
_BEGINS_TRAINING = re.compile(r"[\s\[]*(?:epoch|train|训练)", re.IGNORECASE)
_TRAINING = re.compile(r"epoch|train|step|iter|轮|训练|步|エポック|学習", re.IGNORECASE)


def plain_name(text: str) -> str:
    """Return a printed name in lower case, each run of other characters than letters, digits and @ as one `_`.

    What stands in brackets after a learning rate is the name of its schedule.
    """
    text = _SCHEDULE.sub("", text)
    return _UNIT_FIRST.sub("", re.sub(r"[^\w@]+|_+", "_", text.lower()).strip("_"))


def total_of(name: str) -> str:
    """Return what a plain name is the total of, "steps" or "epochs"; else an empty string."""
    return "epochs" if _TOTAL_EPOCHS.fullmatch(name) else "steps" if _TOTAL_STEPS.fullmatch(name) else ""


def is_step(name: str) -> bool:
    """Return whether a whole name counts steps."""
    return _STEP.fullmatch(name) is not None or name in ("#", "Up")


def is_epoch(name: str) -> bool:
    """Return whether a whole name counts epochs."""
    return _EPOCH.fullmatch(name) is not None or name == "E"


def is_epochs(description: str) -> bool:
    """Return whether the description of a bar says that it counts epochs."""
    return re.fullmatch(r"[\s\[]*(?:(?:train\w*|total)\s+)?epochs?[\s\]:]*", description, re.IGNORECASE) is not None


def is_batch(name: str) -> bool:
    """Return whether a name may count batches, but may be the size of one as well."""
    return plain_name(name) in ("batch", "minibatch", "mini_batch", "micro_batch", "批")


def is_global_step(name: str) -> bool:
    """Return whether a name counts the steps of the whole training rather than of an epoch."""
    return plain_name(name) in ("num_updates", "nupdates", "global_step", "global_steps")


def ends_in_step(text: str) -> bool:
    """Return whether a text ends in a word that counts steps."""
    return _STEP_AT_END.search(text) is not None


def ends_in_epoch(text: str) -> bool:
    """Return whether a text ends in a word that counts epochs."""
    return _EPOCH_AT_END.search(text) is not None


@lru_cache(maxsize=_REMEMBERED)
def is_loss(name: str) -> bool:
    """Return whether a plain name is that of a loss, not of a setting of one."""
    return _LOSS.search(name) is not None and not is_setting(name)


def may_be_progress(text: str) -> bool:
    """Return whether a line may tell anything about a training: a quick look, for outputs of many lines."""
    lower = text.lower()
    return (
        any(hint in lower for hint in _HINTS)
        or any(hint in lower for hint in _MORE_HINTS)
        or not text.isascii()
        or _PAIR.match(text) is not None
    )


def may_name_figures(text: str) -> bool:
    """Return whether a line may be the head of a table: a quick look."""
    return any(word in text for word in _FIGURE_HINTS)


def is_counted(name: str) -> bool:
    """Return whether a plain name is that of a total, a clock or an identifier, which is never a figure."""
    return _COUNTED.search(name) is not None


def is_setting(name: str) -> bool:
    """Return whether a plain name is that of a setting: a figure only where a step or an epoch is printed beside it."""
    return _COUNTED.search(name) is not None or _SETTING.search(name) is not None


@lru_cache(maxsize=_REMEMBERED)
def is_strong(name: str) -> bool:
    """Return whether a plain name alone shows that a model is trained or evaluated."""
    return not is_setting(name) and (is_loss(name) or _KNOWN.search(name) is not None)


@lru_cache(maxsize=_REMEMBERED)
def is_result(name: str) -> bool:
    """Return whether a plain name is one of what a training is for: a loss, an accuracy or the like."""
    return is_strong(name) and _CONDITION.search(name) is None


def is_rate(name: str) -> bool:
    """Return whether a plain name is that of the learning rate, which only a training has."""
    return name in ("lr", "learning_rate", "学习率", "学習率")


def is_known(name: str) -> bool:
    """Return whether a plain name is a figure even without a `:` or `=` after it."""
    return is_strong(name) or (_WEAK.search(name) is not None and not is_setting(name))


def validation_word(text: str) -> str:
    """Return the word by which a text says that it is about validation, or an empty string."""
    found = _VALIDATION.search(text)
    return found.group(0).lower() if found else ""


def title_word(text: str) -> str:
    """Return the validation word of a line that is only a title, as `valid result:`; else an empty string."""
    found = _TITLE.search(text)
    return found[1].lower() if found else ""


def is_preparation(description: str) -> bool:
    """Return whether the description of a progress bar is about something else than training."""
    return _PREPARATION.search(description) is not None and not _BEGINS_TRAINING.match(description)


def is_preparation_line(before: str) -> bool:
    """Return whether a line is about data that is prepared, by the text before its first number."""
    return _PREPARATION_LINE.search(before) is not None


def is_training(description: str) -> bool:
    """Return whether the description of a progress bar is about training."""
    return _TRAINING.search(description) is not None
