import torchvision

_ALLOWED = ('resnet', 'vit', 'convnext', 'efficientnet')


def list_models():
    return [name for name in torchvision.models.list_models() if name.startswith(_ALLOWED)]


def create_model(name, pretrained=False, num_classes=None):
    return torchvision.models.get_model(name, weights='DEFAULT' if pretrained else None, num_classes=num_classes or 1000)
