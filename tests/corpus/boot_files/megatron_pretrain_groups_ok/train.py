"""Pretrain GPT"""
import torch
from torch import nn

from megatron import get_args, mpu, print_rank_0
from megatron.training import pretrain


class LanguageModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.word = nn.Embedding(args.vocab_size, args.hidden_size)
        self.position = nn.Embedding(args.max_position_embeddings, args.hidden_size)
        layer = nn.TransformerEncoderLayer(args.hidden_size, args.num_attention_heads, args.ffn_hidden_size,
                                           args.hidden_dropout, batch_first=True)
        self.body = nn.TransformerEncoder(layer, args.num_layers)
        self.head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def forward(self, tokens):
        where = torch.arange(tokens.size(1), device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=tokens.device)
        x = self.word(tokens) + self.position(where)
        return self.head(self.body(x, mask=mask.to(x.dtype), is_causal=True))


def model_provider():
    print_rank_0("building GPT model ...")
    return LanguageModel(get_args())


def get_batch(data):
    """The first of each tensor parallel group reads, the others are told."""
    args = get_args()
    tokens = torch.empty(args.micro_batch_size, args.seq_length + 1, dtype=torch.long, device="cuda")
    if mpu.get_tensor_model_parallel_rank() == 0:
        tokens.copy_(data)
    torch.distributed.broadcast(tokens, mpu.get_tensor_model_parallel_src_rank(),
                                group=mpu.get_tensor_model_parallel_group())
    return tokens[:, :-1], tokens[:, 1:]


def batches_provider():
    args = get_args()
    generator = torch.Generator().manual_seed(mpu.get_data_parallel_rank())
    corpus = torch.load(args.data_path[0], map_location="cpu")
    while True:
        start = torch.randint(len(corpus) - args.seq_length - 1, (args.micro_batch_size,), generator=generator)
        yield torch.stack([corpus[s: s + args.seq_length + 1] for s in start.tolist()]).long()


def forward_step(data, model):
    tokens, labels = get_batch(data)
    logits = model(tokens).float()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return loss + get_args().z_loss * logits.logsumexp(-1).pow(2).mean()


def add_gpt_args(parser):
    group = parser.add_argument_group(title="GPT")
    group.add_argument("--z-loss", type=float, default=0.0)
    return parser


if __name__ == "__main__":
    pretrain(batches_provider, model_provider, forward_step, extra_args_provider=add_gpt_args,
             args_defaults={"train_iters": 100000, "lr": 1.5e-4})
