"""Training steps of one model on PyTorch in one process: prints one line of JSON.

The counterpart of the program `train-step`: the same models, the same work in a step, the same way to time it.
"""

import argparse
import json
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from torch_resnet import relu, resnet18

CLASSES = 10
STEPS_MIN = 3
WARM_UP_STEPS = 2


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), relu(), nn.Linear(256, CLASSES))


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), relu(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), relu(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), relu(), nn.Linear(120, 84), relu(), nn.Linear(84, CLASSES),
    )


def alexnet():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1), relu(), nn.MaxPool2d(2),
        nn.Conv2d(64, 192, 3, padding=1), relu(), nn.MaxPool2d(2),
        nn.Conv2d(192, 384, 3, padding=1), relu(),
        nn.Conv2d(384, 256, 3, padding=1), relu(),
        nn.Conv2d(256, 256, 3, padding=1), relu(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 4096), relu(), nn.Linear(4096, 4096), relu(), nn.Linear(4096, CLASSES),
    )


def vgg11():
    layers, inputs = [], 3
    for stage in [[64], [128], [256, 256], [512, 512], [512, 512]]:
        for outputs in stage:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), relu()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, CLASSES))


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
MODELS = {
    "mlp": (mlp, GREY),
    "lenet": (lenet, GREY),
    "alexnet": (alexnet, COLOUR),
    "vgg11": (vgg11, COLOUR),
    "resnet18": (lambda: resnet18(channels=3, width=64, classes=CLASSES), COLOUR),
}


def machine_busy_s():
    """Time that all cores together were busy: user, nice, system, irq, softirq, steal."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def peak_resident_bytes():
    with open("/proc/self/status") as status:
        kibibytes = next(line for line in status if line.startswith("VmHWM:")).split()[1]
    return int(kibibytes) * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(1)
    build, shape = MODELS[arguments.model]
    # PyTorch's own start for convolutions and linear layers is uniform within 1/sqrt(fan_in), too.
    model = build().train()
    parameters = list(model.parameters())
    images = (torch.rand(arguments.batch, *shape) * 2 - 1) * 3**0.5
    targets = torch.arange(arguments.batch) % CLASSES
    gradients = torch.empty(sum(parameter.numel() for parameter in parameters))

    def step():
        for parameter in parameters:
            parameter.grad = None
        loss = functional.cross_entropy(model(images.clone()), targets.clone())
        loss.backward()
        torch.cat([parameter.grad.reshape(-1) for parameter in parameters], out=gradients)
        return loss.item()

    length, clock = arguments.seconds, time.perf_counter
    start, warm_up_steps = clock(), 0
    while (
        warm_up_steps == 0
        or clock() - start < length / 5
        or (warm_up_steps < WARM_UP_STEPS and clock() - start < length)
    ):
        step()
        warm_up_steps += 1

    times, loss = [], float("nan")
    busy, own, start = machine_busy_s(), time.process_time(), clock()
    while len(times) < STEPS_MIN or clock() - start < length:
        before = clock()
        loss = step()
        times.append(clock() - before)
    wall, own, busy = clock() - start, time.process_time() - own, machine_busy_s() - busy
    print(json.dumps({
        "step_ms": statistics.median(times) * 1e3,
        "steps": len(times),
        "peak_bytes": peak_resident_bytes(),
        "foreign_cores": max(busy - own, 0.0) / wall,
        "parameters": gradients.numel(),
        "loss": loss,
    }))


main()
