from dataclasses import dataclass

from torch.distributed.device_mesh import init_device_mesh


@dataclass
class ParallelDims:
    dp_shard: int
    tp: int
    world_size: int

    def __post_init__(self):
        if self.dp_shard < 0:
            self.dp_shard = self.world_size // self.tp
        assert self.dp_shard * self.tp == self.world_size, f"{self.dp_shard} * {self.tp} != {self.world_size}"

    def build_mesh(self, device_type):
        return init_device_mesh(device_type, (self.dp_shard, self.tp), mesh_dim_names=("dp_shard", "tp"))
