#!/usr/bin/env python
# coding=utf-8
import logging
import os
import sys
from dataclasses import dataclass, field
from typing import Optional

import datasets
import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

logger = logging.getLogger(__name__)
task_to_keys = {"mrpc": ("sentence1", "sentence2"), "sst2": ("sentence", None)}


@dataclass
class DataTrainingArguments:
    task_name: Optional[str] = field(default=None, metadata={"help": "task: " + ", ".join(task_to_keys)})
    max_seq_length: int = field(default=128)
    overwrite_cache: bool = field(default=False)

    def __post_init__(self):
        if self.task_name is not None:
            self.task_name = self.task_name.lower()
            if self.task_name not in task_to_keys:
                raise ValueError("Unknown task")


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "path or identifier"})
    cache_dir: Optional[str] = field(default=None)
    use_fast_tokenizer: bool = field(default=True)


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    logging.basicConfig(level=logging.INFO if training_args.local_rank in [-1, 0] else logging.WARN)
    logger.warning("Process rank: %s, device: %s", training_args.local_rank, training_args.device)
    set_seed(training_args.seed)

    raw = load_dataset("glue", data_args.task_name, cache_dir=model_args.cache_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(model_args.model_name_or_path)
    k1, k2 = task_to_keys[data_args.task_name]

    def preprocess(examples):
        pair = (examples[k1],) if k2 is None else (examples[k1], examples[k2])
        return tokenizer(*pair, padding="max_length", max_length=data_args.max_seq_length, truncation=True)

    with training_args.main_process_first(desc="dataset map pre-processing"):
        raw = raw.map(preprocess, batched=True, load_from_cache_file=not data_args.overwrite_cache)

    trainer = Trainer(model=model, args=training_args, train_dataset=raw["train"], eval_dataset=raw["validation"],
                      compute_metrics=lambda p: {"acc": float((np.argmax(p.predictions, 1) == p.label_ids).mean())})
    if training_args.do_train:
        trainer.train()
        trainer.save_model()
    trainer.evaluate()


if __name__ == "__main__":
    main()
