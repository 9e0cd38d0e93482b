"""QLoRA on one machine's GPUs; own dataclass only, TrainingArguments is built in the code."""
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import List, Optional

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


class Bias(str, Enum):
    none = "none"
    all = "all"
    lora_only = "lora_only"


@dataclass
class ScriptArguments:
    model_name: str = field(metadata={"help": "the model that gets adapters"})
    dataset_name: Optional[str] = field(default="timdettmers/openassistant-guanaco")
    per_device_train_batch_size: Optional[int] = field(default=4)
    gradient_accumulation_steps: Optional[int] = field(default=4)
    learning_rate: Optional[float] = field(default=2e-4)
    lora_r: int = field(default=64)
    lora_alpha: int = field(default=16)
    lora_dropout: float = field(default=0.1)
    bias: Bias = field(default=Bias.none)
    target_modules: List[str] = field(default_factory=lambda: ["q_proj", "v_proj"])
    use_4bit: Optional[bool] = field(default=True)
    group_by_length: bool = field(default=False)
    max_seq_length: int = field(default=512)
    max_steps: int = field(default=1000)
    output_dir: str = field(default="/out/adapters")


parser = HfArgumentParser(ScriptArguments)
script_args = parser.parse_args_into_dataclasses()[0]


def create_model(args):
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                      bnb_4bit_compute_dtype=torch.bfloat16) if args.use_4bit else None
    device_map = {"": int(os.environ.get("LOCAL_RANK") or 0)}
    model = AutoModelForCausalLM.from_pretrained(args.model_name, quantization_config=quantization,
                                                 device_map=device_map)
    model.config.use_cache = False
    if args.use_4bit:
        model = prepare_model_for_kbit_training(model)
    lora = LoraConfig(r=args.lora_r, lora_alpha=args.lora_alpha, lora_dropout=args.lora_dropout,
                      bias=args.bias, target_modules=args.target_modules, task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


training_arguments = TrainingArguments(
    output_dir=script_args.output_dir,
    per_device_train_batch_size=script_args.per_device_train_batch_size,
    gradient_accumulation_steps=script_args.gradient_accumulation_steps,
    learning_rate=script_args.learning_rate,
    bf16=True,
    max_steps=script_args.max_steps,
    logging_steps=10,
    save_steps=100,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    ddp_find_unused_parameters=False,
)

model = create_model(script_args)
if training_arguments.process_index == 0:
    model.print_trainable_parameters()
tokenizer = AutoTokenizer.from_pretrained(script_args.model_name)
tokenizer.pad_token = tokenizer.eos_token
dataset = load_dataset(script_args.dataset_name, split="train")
with training_arguments.main_process_first():
    dataset = dataset.map(
        lambda rows: tokenizer(rows["text"], truncation=True, max_length=script_args.max_seq_length),
        batched=True, remove_columns=dataset.column_names)

trainer = Trainer(model=model, args=training_arguments, train_dataset=dataset,
                  data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))
trainer.train()
trainer.save_model(script_args.output_dir)
