import torchaudio
from torch.utils.data import Dataset


class WavSegments(Dataset):
    def __init__(self, root, seconds, rate=16000):
        self.files, self.length = sorted(root.rglob("*.wav")), int(seconds * rate) // 16 * 16

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        wav, _ = torchaudio.load(str(self.files[i]), num_frames=self.length)
        return wav.mean(0, keepdim=True)
