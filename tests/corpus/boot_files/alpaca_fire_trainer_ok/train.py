import os
import sys
from typing import List

import fire
import torch
import transformers
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer

from utils.prompter import Prompter


def train(
    base_model: str = "",
    data_path: str = "/data/alpaca.json",
    output_dir: str = "./lora-alpaca",
    batch_size: int = 128,
    micro_batch_size: int = 4,
    num_epochs: int = 3,
    learning_rate: float = 3e-4,
    cutoff_len: int = 256,
    lora_r: int = 8,
    lora_target_modules: List[str] = ["q_proj", "v_proj"],
    group_by_length: bool = False,
    resume_from_checkpoint: str = None,
    prompt_template_name: str = "plain",
):
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print(f"Training LoRA model with params: base_model: {base_model} data_path: {data_path} lora_r: {lora_r}")
    assert base_model, "Please specify a --base_model"
    gradient_accumulation_steps = batch_size // micro_batch_size
    prompter = Prompter(prompt_template_name)

    device_map = "auto"
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    ddp = world_size != 1
    if ddp:
        device_map = {"": int(os.environ.get("LOCAL_RANK") or 0)}
        gradient_accumulation_steps = max(1, gradient_accumulation_steps // world_size)

    model = AutoModelForCausalLM.from_pretrained(base_model, torch_dtype=torch.bfloat16, device_map=device_map)
    tokenizer = AutoTokenizer.from_pretrained(base_model)
    tokenizer.pad_token_id = 0
    tokenizer.padding_side = "left"

    def tokenize(point):
        full = prompter.generate_prompt(point["instruction"], point.get("input"), point["output"])
        result = tokenizer(full, truncation=True, max_length=cutoff_len, padding=False)
        result["labels"] = result["input_ids"].copy()
        return result

    model = get_peft_model(
        model, LoraConfig(r=lora_r, lora_alpha=16, target_modules=list(lora_target_modules), task_type="CAUSAL_LM")
    )
    data = load_dataset("json", data_files=data_path)["train"].shuffle(seed=42).map(tokenize)
    if resume_from_checkpoint:
        name = os.path.join(resume_from_checkpoint, "adapter_model.bin")
        set_peft_model_state_dict(model, torch.load(name, map_location="cpu"))
    if not ddp and torch.cuda.device_count() > 1:
        # keeps Trainer from trying its own DataParallelism when more than 1 gpu is available
        model.is_parallelizable = True
        model.model_parallel = True

    trainer = transformers.Trainer(
        model=model,
        train_dataset=data,
        args=transformers.TrainingArguments(
            per_device_train_batch_size=micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            warmup_steps=100,
            num_train_epochs=num_epochs,
            learning_rate=learning_rate,
            bf16=True,
            logging_steps=10,
            save_strategy="steps",
            save_steps=200,
            output_dir=output_dir,
            save_total_limit=3,
            ddp_find_unused_parameters=False if ddp else None,
            group_by_length=group_by_length,
            report_to="none",
        ),
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8, return_tensors="pt", padding=True),
    )
    model.config.use_cache = False
    if torch.__version__ >= "2" and sys.platform != "win32" and not ddp:
        model = torch.compile(model)
    trainer.train()
    trainer.save_model(output_dir)


if __name__ == "__main__":
    fire.Fire(train)
