"""Nets of others, small: written as torchvision writes its ResNet, VGG, DenseNet and MobileNet; and an input."""

import torch
from torch import nn

from onebit import ProjectionConv2d

X = torch.linspace(-1, 1, 2 * 3 * 32 * 32).sin().reshape(2, 3, 32, 32)


def replaced(model):
    return [name for name, module in model.named_modules() if isinstance(module, ProjectionConv2d)]


class BasicBlock(nn.Module):
    """One ReLU module called at two places."""

    def __init__(self, in_width, width, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_width, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or in_width != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_width, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(width, width), BasicBlock(width, width))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    def __init__(self, batch_norm=True, width=8):
        super().__init__()
        layers = []
        in_width = 3
        for v in (width, "M", 2 * width, 2 * width, "M"):
            if v == "M":
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers.append(nn.Conv2d(in_width, v, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(v))
            layers.append(nn.ReLU(inplace=True))
            in_width = v
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Linear(in_width * 4, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 10))

    def forward(self, x):
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class DenseLayer(nn.Module):
    def __init__(self, in_width, growth):
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(in_width), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_width, 2 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(2 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features):
        x = torch.cat(features, 1)
        return self.conv2(self.relu2(self.norm2(self.conv1(self.relu1(self.norm1(x))))))


class DenseNet(nn.Module):
    def __init__(self, growth=4):
        super().__init__()
        self.conv0 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.block = nn.ModuleDict({f"layer{i}": DenseLayer(8 + i * growth, growth) for i in range(3)})
        self.norm = nn.BatchNorm2d(8 + 3 * growth)
        self.fc = nn.Linear(8 + 3 * growth, 10)

    def forward(self, x):
        features = [self.conv0(x)]
        for layer in self.block.values():
            features.append(layer(features))
        x = nn.functional.relu(self.norm(torch.cat(features, 1)))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class MobileNet(nn.Module):
    """Inverted residuals: all 3x3 convs but the stem are depthwise."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
        )
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.project(self.depthwise(self.expand(x)))
        return self.fc(x.mean([2, 3]))
