from .base_options import BaseOptions


class TrainOptions(BaseOptions):
    def initialize(self, parser):
        parser = BaseOptions.initialize(self, parser)
        parser.add_argument('--print_freq', type=int, default=100)
        parser.add_argument('--save_epoch_freq', type=int, default=5)
        parser.add_argument('--epoch_count', type=int, default=1)
        parser.add_argument('--n_epochs', type=int, default=100)
        parser.add_argument('--n_epochs_decay', type=int, default=100)
        parser.add_argument('--beta1', type=float, default=0.5)
        parser.add_argument('--lr', type=float, default=0.0002)
        parser.add_argument('--gan_mode', type=str, default='lsgan', choices=['vanilla', 'lsgan', 'wgangp'])
        self.isTrain = True
        return parser
