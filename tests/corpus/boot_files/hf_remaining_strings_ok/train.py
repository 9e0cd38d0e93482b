"""Sequence classification; words that are not ours go to the experiment tracker."""
import logging
import os
from dataclasses import dataclass, field

from datasets import load_from_disk
from transformers import AutoModelForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

from evaluation.metrics import METRICS

logging.basicConfig(level=logging.INFO)


@dataclass
class RunArguments:
    dataset_dir: str = field(metadata={"help": "what save_to_disk wrote"})
    model_name: str = field(default="distilbert-base-uncased")
    num_labels: int = field(default=2)
    batch_size: int = field(default=16)
    warmup_ratio: float = field(default=0.06)
    metric: str = field(default="accuracy", metadata={"choices": ["accuracy", "macro_f1"]})
    epochs: float = field(default=3.0)
    freeze_backbone: bool = False


def parse():
    parser = HfArgumentParser(RunArguments)
    run, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)
    tags = dict(word.lstrip("-").split("=", 1) for word in rest if "=" in word)
    return run, tags


def main():
    run, tags = parse()
    output = os.path.join(os.environ.get("OUTPUT_ROOT", "/out"), tags.get("tracker_run", "default"))
    training_args = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=run.batch_size,
        num_train_epochs=run.epochs,
        warmup_steps=100,
        dataloader_num_workers=4,
        report_to=[],
    )
    data = load_from_disk(run.dataset_dir)
    model = AutoModelForSequenceClassification.from_pretrained(run.model_name, num_labels=run.num_labels)
    if run.freeze_backbone:
        model.base_model.requires_grad_(False)
    trainer = Trainer(model=model, args=training_args, train_dataset=data["train"], eval_dataset=data["test"],
                      compute_metrics=METRICS[run.metric])
    trainer.train()
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        logging.info("%s %s", tags, metrics)
    trainer.save_model()


if __name__ == "__main__":
    main()
