import argparse


class BaseOptions:
    def __init__(self):
        self.initialized = False

    def initialize(self, parser):
        parser.add_argument('--dataroot', required=True, help='path to images')
        parser.add_argument('--name', type=str, default='experiment_name')
        parser.add_argument('--ngf', type=int, default=64)
        parser.add_argument('--batch_size', type=int, default=1)
        parser.add_argument('--no_flip', action='store_true')
        parser.add_argument('--verbose', action='store_true')
        self.initialized = True
        return parser

    def gather_options(self):
        if not self.initialized:
            parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
            parser = self.initialize(parser)
        opt, _ = parser.parse_known_args()
        if opt.verbose:
            parser.set_defaults(print_freq=1)
        self.parser = parser
        return parser.parse_args()

    def parse(self):
        opt = self.gather_options()
        opt.isTrain = self.isTrain
        return opt
