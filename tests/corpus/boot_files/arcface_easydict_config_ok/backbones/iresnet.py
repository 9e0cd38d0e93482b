from torch import nn

__all__ = ["iresnet18", "iresnet50"]


class IBasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm2d(inplanes), nn.Conv2d(inplanes, planes, 3, 1, 1, bias=False), nn.BatchNorm2d(planes),
                                  nn.PReLU(planes), nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes))
        self.down = nn.Conv2d(inplanes, planes, 1, stride, bias=False)

    def forward(self, x):
        return self.body(x) + self.down(x)


class IResNet(nn.Module):
    def __init__(self, layers, dropout=0.0, num_features=512):
        super().__init__()
        blocks, inplanes = [nn.Conv2d(3, 64, 3, 1, 1, bias=False)], 64
        for planes, n in zip((64, 128, 256, 512), layers):
            for i in range(n):
                blocks.append(IBasicBlock(inplanes, planes, 2 if i == 0 else 1))
                inplanes = planes
        self.body = nn.Sequential(*blocks, nn.BatchNorm2d(512), nn.Dropout(dropout), nn.Flatten())
        self.fc = nn.Linear(512 * 7 * 7, num_features)

    def forward(self, x):
        return self.fc(self.body(x))


def iresnet18(pretrained=False, **kwargs):
    return IResNet([2, 2, 2, 2], **kwargs)


def iresnet50(pretrained=False, **kwargs):
    return IResNet([3, 4, 14, 3], **kwargs)
