# Accelerate on images: one folder, the label is in the file's name.
import argparse
import os
import re

import PIL.Image
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50
from torchvision.transforms import Compose, RandomResizedCrop, Resize, ToTensor


def extract_label(fname):
    return re.search(r"^(.*)_\d+\.jpg$", fname.split(os.path.sep)[-1]).groups()[0]


class PetsDataset(Dataset):
    def __init__(self, names, transform=None, label_to_id=None):
        self.names, self.transform, self.label_to_id = names, transform, label_to_id

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        image = PIL.Image.open(self.names[index]).convert("RGB")
        return {"image": self.transform(image), "label": self.label_to_id[extract_label(self.names[index])]}


def str2bool(value):
    if value.lower() in ("yes", "true", "1"):
        return True
    if value.lower() in ("no", "false", "0"):
        return False
    raise argparse.ArgumentTypeError("Boolean value expected.")


def training_function(config, args):
    project = ProjectConfiguration(project_dir=args.project_dir, automatic_checkpoint_naming=True, total_limit=3)
    accelerator = Accelerator(
        cpu=args.cpu,
        mixed_precision=args.mixed_precision,
        project_config=project,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    names = sorted(os.path.join(args.data_dir, f) for f in os.listdir(args.data_dir) if f.endswith(".jpg"))
    labels = sorted({extract_label(f) for f in names})
    label_to_id = {label: i for i, label in enumerate(labels)}
    set_seed(config["seed"])
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()
    cut = int(0.8 * len(names))
    size = config["image_size"]
    train = PetsDataset([names[i] for i in order[:cut]], Compose([RandomResizedCrop(size), ToTensor()]), label_to_id)
    held_out = PetsDataset([names[i] for i in order[cut:]], Compose([Resize((size, size)), ToTensor()]), label_to_id)
    train_loader = DataLoader(train, shuffle=True, batch_size=config["batch_size"], num_workers=4)
    eval_loader = DataLoader(held_out, shuffle=False, batch_size=config["batch_size"], num_workers=4)

    with accelerator.local_main_process_first():
        model = resnet50(weights="DEFAULT" if args.pretrained else None)
    model.fc = torch.nn.Linear(model.fc.in_features, len(labels))
    model = model.to(accelerator.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"] / 25)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=config["lr"], epochs=config["num_epochs"],
        steps_per_epoch=max(1, len(train_loader) // accelerator.num_processes + 1) * accelerator.num_processes)
    model, optimizer, train_loader, eval_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, schedule)
    accelerator.register_for_checkpointing(schedule)

    if args.resume and os.path.isdir(os.path.join(args.project_dir, "checkpoints")):
        accelerator.load_state()
    for epoch in range(config["num_epochs"]):
        model.train()
        for batch in train_loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.save_state()
        model.eval()
        right = seen = 0
        for batch in eval_loader:
            with torch.no_grad():
                guess = model(batch["image"]).argmax(dim=-1)
            guess, truth = accelerator.gather_for_metrics((guess, batch["label"]))
            right += (guess == truth).sum().item()
            seen += len(truth)
        if accelerator.is_main_process:
            print(f"epoch {epoch}: {100 * right / max(seen, 1):.2f}")
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--data_dir", required=True, help="The data folder on disk.")
    parser.add_argument("--mixed_precision", type=str, default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--pretrained", type=str2bool, nargs="?", const=True, default=False)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--project_dir", type=str, default="logs")
    args = parser.parse_args()
    training_function({"lr": 3e-2, "num_epochs": 3, "seed": 42, "batch_size": 64, "image_size": 224}, args)


if __name__ == "__main__":
    main()
