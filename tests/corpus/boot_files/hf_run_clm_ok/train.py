#!/usr/bin/env python
# coding=utf-8
"""Fine-tune a causal language model on text, with the Trainer."""
import logging
import math
import os
import sys
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, Optional

import datasets
import transformers
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """Which model is tuned."""

    model_name_or_path: str = field(metadata={"help": "a folder, or a name on the hub"})
    config_overrides: Optional[str] = field(default=None, metadata={"help": "n_embd=10,resid_pdrop=0.2"})
    dtype_name: Optional[str] = field(
        default=None,
        metadata={"help": "dtype of the weights", "choices": ["auto", "bfloat16", "float16", "float32"]},
    )
    use_fast_tokenizer: bool = field(default=True, metadata={"help": "use one of the fast tokenizers"})


@dataclass
class DataTrainingArguments:
    """Which text it is tuned on."""

    dataset_name: Optional[str] = field(default=None)
    dataset_config_name: Optional[str] = field(default=None)
    train_file: Optional[str] = field(default=None)
    block_size: Optional[int] = field(default=None, metadata={"help": "length of a block of tokens"})
    validation_split_percentage: Optional[int] = field(default=5)
    packing: Literal["none", "concat", "drop"] = field(default="concat")
    preprocessing_num_workers: Optional[int] = field(default=None)

    def __post_init__(self):
        if self.dataset_name is None and self.train_file is None:
            raise ValueError("Need a dataset name or a training file.")
        if self.train_file is not None:
            extension = self.train_file.split(".")[-1]
            assert extension in ["csv", "json", "txt"], "`train_file` should be csv, json or txt."


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        # one word that names a json file: take everything from there
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    logging.basicConfig(handlers=[logging.StreamHandler(sys.stdout)], format="%(asctime)s %(message)s")
    if training_args.should_log:
        transformers.utils.logging.set_verbosity_info()
    level = training_args.get_process_log_level()
    logger.setLevel(level)
    datasets.utils.logging.set_verbosity(level)
    logger.warning(f"device: {training_args.device}, n_gpu: {training_args.n_gpu}, rank: {training_args.process_index}")

    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    set_seed(training_args.seed)

    if data_args.dataset_name is not None:
        raw = load_dataset(data_args.dataset_name, data_args.dataset_config_name)
    else:
        raw = load_dataset("text", data_files={"train": data_args.train_file})
    if "validation" not in raw:
        raw = raw["train"].train_test_split(test_size=data_args.validation_split_percentage / 100, seed=0)
        raw["validation"] = raw.pop("test")

    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    if model_args.config_overrides is not None:
        config.update_from_string(model_args.config_overrides)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, use_fast=model_args.use_fast_tokenizer)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, config=config)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))

    block_size = min(data_args.block_size or 1024, tokenizer.model_max_length)

    def group_texts(examples):
        joined = {k: list(chain(*examples[k])) for k in examples.keys()}
        total = (len(joined["input_ids"]) // block_size) * block_size
        result = {k: [t[i: i + block_size] for i in range(0, total, block_size)] for k, t in joined.items()}
        result["labels"] = result["input_ids"].copy()
        return result

    with training_args.main_process_first(desc="tokenize and group"):
        columns = raw["train"].column_names
        tokenized = raw.map(lambda e: tokenizer(e["text"]), batched=True, remove_columns=columns,
                            num_proc=data_args.preprocessing_num_workers)
        lm = tokenized.map(group_texts, batched=True)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=lm["train"] if training_args.do_train else None,
        eval_dataset=lm["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    if training_args.do_train:
        checkpoint = training_args.resume_from_checkpoint or last_checkpoint
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["perplexity"] = math.exp(metrics["eval_loss"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)


def _mp_fn(index):
    # for xla_spawn
    main()


if __name__ == "__main__":
    main()
