import argparse
import os


class opts(object):
    def __init__(self):
        self.parser = argparse.ArgumentParser()
        # basic experiment setting
        self.parser.add_argument("task", default="ctdet", help="ctdet | multi_pose")
        self.parser.add_argument("--dataset", default="coco", choices=["coco", "pascal"])
        self.parser.add_argument("--exp_id", default="default")
        self.parser.add_argument("--exp_root", default="exp")
        self.parser.add_argument("--load_model", default="", help="path to pretrained model")
        self.parser.add_argument("--resume", action="store_true", help="resume an experiment")
        # system
        self.parser.add_argument("--num_workers", type=int, default=4)
        self.parser.add_argument("--not_cuda_benchmark", action="store_true")
        self.parser.add_argument("--seed", type=int, default=317)
        self.parser.add_argument("--local_rank", type=int, default=0, help="unused: the launcher sets the variable")
        # model
        self.parser.add_argument("--arch", default="dla_34", help="res_18 | res_101 | dla_34")
        self.parser.add_argument("--head_conv", type=int, default=-1)
        # train
        self.parser.add_argument("--lr", type=float, default=1.25e-4)
        self.parser.add_argument("--lr_step", type=str, default="90,120", help="drop learning rate by 10.")
        self.parser.add_argument("--num_epochs", type=int, default=140)
        self.parser.add_argument("--batch_size", type=int, default=32)
        self.parser.add_argument("--val_intervals", type=int, default=5)
        self.parser.add_argument("--metric", default="loss", help="main metric to save best model")
        self.parser.add_argument("--hm_weight", type=float, default=1)

    def parse(self, args=""):
        if args == "":
            opt = self.parser.parse_args()
        else:
            opt = self.parser.parse_args(args)
        opt.lr_step = [int(i) for i in opt.lr_step.split(",")]
        if opt.head_conv == -1:
            opt.head_conv = 256 if "dla" in opt.arch else 64
        opt.num_classes = {"coco": 80, "pascal": 20}[opt.dataset]
        opt.save_dir = os.path.join(opt.exp_root, opt.task, opt.exp_id)
        return opt
