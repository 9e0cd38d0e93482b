"""Translation with Seq2SeqTrainer; usually started with one json file."""
import os
import sys
from dataclasses import dataclass, field
from typing import Optional

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "what to start from"})
    revision: str = field(default="main")


@dataclass
class DataArguments:
    source_lang: str = field(default=None)
    target_lang: str = field(default=None)
    train_file: Optional[str] = field(default=None)
    max_source_length: Optional[int] = field(default=1024)
    max_target_length: Optional[int] = field(default=128)

    def __post_init__(self):
        if self.source_lang is None or self.target_lang is None:
            raise ValueError("Need to specify the source language and the target language.")


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """What Seq2SeqTrainingArguments has, and ours."""

    glossary_weight: float = field(default=0.0)
    freeze_embeddings: bool = field(default=False)


def read_glossary():
    with open(os.path.join(HERE, "resources/glossary.tsv"), encoding="utf-8") as lines:
        return dict(line.rstrip("\n").split("\t") for line in lines)


class GlossaryTrainer(Seq2SeqTrainer):
    def __init__(self, *args, glossary_ids=(), **kwargs):
        super().__init__(*args, **kwargs)
        self.glossary_ids = torch.tensor(list(glossary_ids), dtype=torch.long)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if self.args.glossary_weight and len(self.glossary_ids):
            ids = self.glossary_ids.to(outputs.logits.device)
            loss = loss - self.args.glossary_weight * outputs.logits.log_softmax(-1)[..., ids].mean()
        return (loss, outputs) if return_outputs else loss


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TranslationTrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    glossary = read_glossary()
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, revision=model_args.revision)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path, revision=model_args.revision)
    if training_args.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)

    raw = load_dataset("json", data_files={"train": data_args.train_file})

    def preprocess(examples):
        inputs = [pair[data_args.source_lang] for pair in examples["translation"]]
        targets = [pair[data_args.target_lang] for pair in examples["translation"]]
        return tokenizer(inputs, text_target=targets, max_length=data_args.max_source_length, truncation=True)

    with training_args.main_process_first(desc="train dataset map"):
        train = raw["train"].map(preprocess, batched=True, remove_columns=raw["train"].column_names)

    trainer = GlossaryTrainer(
        model=model,
        args=training_args,
        train_dataset=train,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100),
        glossary_ids=[tokenizer.convert_tokens_to_ids(word) for word in glossary.values()],
    )
    if training_args.do_train:
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()


if __name__ == "__main__":
    main()
