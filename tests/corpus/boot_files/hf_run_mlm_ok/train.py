#!/usr/bin/env python
import functools
import logging
import os
import sys
from dataclasses import dataclass, field
from typing import List, Optional

from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from data_utils import group_into_blocks, load_text

try:
    import wandb
except ImportError:
    wandb = None

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: Optional[str] = field(default="bert-base-cased")
    tokenizer_name: Optional[str] = field(default=None)
    cache_dir: Optional[str] = field(default=None)
    freeze: List[str] = field(default_factory=list, metadata={"help": "prefixes of parameters that stay as they are"})


@dataclass
class DataTrainingArguments:
    train_file: str = field(metadata={"help": "text, one sentence a line"})
    validation_file: Optional[str] = field(default=None)
    max_seq_length: int = field(default=128)
    mlm_probability: float = field(default=0.15)
    pad_to_max_length: bool = field(default=False)


class LogFirstBatch(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and state.global_step == 0:
            logger.info("first step, world size %d", args.world_size)


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        parsed = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    elif len(sys.argv) == 2 and sys.argv[1].endswith((".yaml", ".yml")):
        parsed = parser.parse_yaml_file(yaml_file=os.path.abspath(sys.argv[1]))
    else:
        parsed = parser.parse_args_into_dataclasses()
    model_args, data_args, training_args = parsed

    is_main = training_args.process_index == 0
    logging.basicConfig(level=logging.INFO if is_main else logging.WARN)
    if is_main and wandb is not None and "WANDB_API_KEY" in os.environ:
        wandb.init(project="mlm", name=training_args.run_name)
    set_seed(training_args.seed)

    tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name or model_args.model_name_or_path)
    model = AutoModelForMaskedLM.from_pretrained(model_args.model_name_or_path, cache_dir=model_args.cache_dir)
    for name, parameter in model.named_parameters():
        if any(name.startswith(prefix) for prefix in model_args.freeze):
            parameter.requires_grad = False

    raw = load_text(data_args.train_file, data_args.validation_file, model_args.cache_dir)
    with training_args.main_process_first(desc="tokenize"):
        tokenized = raw.map(lambda e: tokenizer(e["text"], return_special_tokens_mask=True), batched=True,
                            remove_columns=["text"])
        blocks = tokenized.map(functools.partial(group_into_blocks, max_seq_length=data_args.max_seq_length),
                               batched=True)

    collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=data_args.mlm_probability)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=blocks["train"],
        eval_dataset=blocks.get("validation"),
        data_collator=collator,
        callbacks=[LogFirstBatch()],
    )
    if training_args.do_train:
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
    if training_args.do_eval and "validation" in blocks:
        metrics = trainer.evaluate()
        if trainer.is_world_process_zero():
            print(metrics)


if __name__ == "__main__":
    main()
