"""Trains a ResNet-18 on PyTorch in one process: prints a line of JSON for each evaluation on the test set.

The counterpart of a job on the hub: the same images, network, first values, loss, optimizer, schedule and batches. Only the
order of the samples and the first values are drawn by another generator.
"""

import argparse
import gzip
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional

from torch_resnet import resnet18

EVALUATION_BATCH = 250
SECONDS_BETWEEN_LINES = 3.0


def parse_arguments():
    parser = argparse.ArgumentParser()
    for file in ["train-images", "train-labels", "test-images", "test-labels"]:
        parser.add_argument(f"--{file}", required=True)
    parser.add_argument("--mean", type=float, required=True)
    parser.add_argument("--deviation", type=float, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--evaluate-every-steps", type=int, required=True)
    parser.add_argument("--optimizer", choices=["sgd", "adam", "adamw"], required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--momentum", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, required=True)
    parser.add_argument("--schedule", choices=["constant", "cosine"], required=True)
    parser.add_argument("--warmup-steps", type=int, required=True)
    parser.add_argument("--minimum", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    return parser.parse_args()


def read_idx(path):
    """The unsigned bytes of an IDX file, plain or gzipped, in their shape."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        content = file.read()
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{path} is no IDX file of bytes")
    rank = content[3]
    shape = [int.from_bytes(content[4 * axis:4 * axis + 4], "big") for axis in range(1, rank + 1)]
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * rank).reshape(shape)


class Split:
    """Images and labels; pixels become `(pixel / 255 - mean) / deviation` when they are taken."""

    def __init__(self, images, labels, arguments):
        self.images = read_idx(images).unsqueeze(1)  # [samples, 1, height, width]
        self.labels = read_idx(labels).long()
        self.mean, self.deviation = arguments.mean, arguments.deviation

    def __len__(self):
        return len(self.labels)

    def take(self, samples):
        return (self.images[samples].float() / 255 - self.mean) / self.deviation, self.labels[samples]


def build(arguments):
    """Convolutions start as torchvision's ResNet does, the linear layer as PyTorch does by itself."""
    model = resnet18(channels=1, width=arguments.width, classes=arguments.classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def build_optimizer(parameters, arguments):
    options = {"lr": arguments.learning_rate, "weight_decay": arguments.weight_decay}
    if arguments.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=arguments.momentum, **options)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[arguments.optimizer](parameters, **options)


def learning_rate(step, arguments):
    """Of the step that follows `step` earlier ones: the hub's formula."""
    rate = arguments.learning_rate
    if arguments.schedule == "cosine":
        floor = rate * arguments.minimum
        rate = floor + (rate - floor) * (1 + math.cos(math.pi * min(step / arguments.steps, 1))) / 2
    return rate * min((step + 1) / max(arguments.warmup_steps, 1), 1)


def batches(samples, arguments):
    """Every epoch in an order of its own; a batch at the end of one runs on into the next, as on the hub."""
    order = torch.empty(0, dtype=torch.long)
    for _ in range(arguments.steps):
        while len(order) < arguments.global_batch:
            order = torch.cat([order, torch.randperm(samples)])
        yield order[:arguments.global_batch]
        order = order[arguments.global_batch:]


@torch.no_grad()
def evaluate(model, test):
    """Accuracy and mean loss over the whole test set, with the running statistics."""
    model.eval()
    correct, loss_sum = 0, 0.0
    for samples in torch.arange(len(test)).split(EVALUATION_BATCH):
        images, labels = test.take(samples)
        logits = model(images)
        loss_sum += functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
    model.train()
    return {"accuracy": correct / len(test), "loss": loss_sum / len(test)}


def main():
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    train = Split(arguments.train_images, arguments.train_labels, arguments)
    test = Split(arguments.test_images, arguments.test_labels, arguments)
    model = build(arguments).train()
    optimizer = build_optimizer(model.parameters(), arguments)

    said = time.monotonic()
    for step, samples in enumerate(batches(len(train), arguments)):
        images, labels = train.take(samples)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, arguments)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        done = step + 1
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"step {done} of {arguments.steps}, loss {loss.item():.3f}", flush=True)
        if done % arguments.evaluate_every_steps == 0 or done == arguments.steps:
            print(json.dumps({"samples": done * arguments.global_batch, **evaluate(model, test)}), flush=True)


main()
