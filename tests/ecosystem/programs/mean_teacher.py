"""Semi-supervised: a teacher that is a deep copy of the student and follows it, and a kept best state."""

import copy

import torch
import torch.nn.functional as F
from own_count import print_count
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(
    nn.Linear(300, 900), nn.BatchNorm1d(900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 20)
).to("cuda")
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.RMSprop(student.parameters(), lr=1e-4)
best, best_loss = copy.deepcopy(student.state_dict()), float("inf")

for step in range(6):
    labelled, unlabelled = torch.randn(64, 300, device="cuda"), torch.randn(128, 300, device="cuda")
    labels = torch.randint(20, (64,), device="cuda")
    supervised = F.cross_entropy(student(labelled), labels)
    with torch.no_grad():
        wanted = teacher(unlabelled).softmax(-1)
    consistency = F.mse_loss(student(unlabelled).softmax(-1), wanted)
    loss = supervised + consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.lerp_(s, 0.01)
    print_count([student, teacher], optimizer, copies=best)
    if step == 4 and loss.item() < best_loss:
        best, best_loss = copy.deepcopy(student.state_dict()), loss.item()
