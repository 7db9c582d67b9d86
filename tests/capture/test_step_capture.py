"""A user's own training step."""

import torch
import torch.nn.functional as F
from torch import nn

from predictor.capture.torch import capture_step


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def build(kind, **options):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = kind(model.parameters(), **options)
    return model, optimizer, torch.empty(8, 16), torch.zeros(8, dtype=torch.long)


def test_phases_and_update(ops):
    graph = capture_step(step, build(torch.optim.AdamW))
    assert ops(graph, "forward")["aten.addmm"] == 2
    assert ops(graph, "backward")["aten.mm"] == 3
    assert ops(graph, "optimizer")["aten._foreach_norm"] == 1
    assert graph.nodes[-1].op == "predictor.adamw"
    assert graph.nodes[-1].attrs["numel"] == 16 * 32 + 32 + 32 * 4 + 4
    work = graph.workload
    assert (work.name, work.mode, work.optimizer, work.batch) == ("step", "train", "adamw", 8)
    assert work.trainable_bytes == work.parameters_bytes


def test_optimizer_options_reach_the_node():
    graph = capture_step(step, build(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1))
    update = graph.nodes[-1]
    assert update.op == "predictor.sgd"
    assert (update.attrs["momentum"], update.attrs["weight_decay"]) == (True, 0.1)
    assert update.attrs["state_bytes"] == update.attrs["numel"] * 4


def test_other_optimizers_are_one_node_too():
    graph = capture_step(step, build(torch.optim.RMSprop))
    assert graph.nodes[-1].op == "predictor.optimizer_other"
    assert graph.nodes[-1].attrs["kind"] == "RMSprop"


def test_gradient_accumulation_keeps_the_second_forward_a_forward(ops):
    def twice(model, optimizer, x, y):
        for _ in range(2):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()

    graph = capture_step(twice, build(torch.optim.AdamW))
    assert ops(graph, "forward")["aten.addmm"] == 4
    assert ops(graph, "optimizer") == {"predictor.adamw": 1}


def test_a_step_without_gradients_is_inference():
    def forward(model, x):
        with torch.no_grad():
            return model(x)

    model, _, x, _ = build(torch.optim.SGD)
    graph = capture_step(forward, (model, x))
    assert (graph.workload.mode, {n.phase for n in graph.nodes}) == ("infer", {"forward"})
