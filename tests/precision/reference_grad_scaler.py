"""Writes reference_grad_scaler.json: what torch.amp.GradScaler does in scripted loops with finite, infinite and NaN gradients.

    python reference_grad_scaler.py > reference_grad_scaler.json        (torch==2.13.0)

Each case has one or two SGD optimizers; inputs come from a hash that the test repeats exactly.
"""
import json

import torch

N = 6
STEPS = 48
CASES = [
    {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 5, "optimizers": 1,
     "bad": [[3, 0, "inf"], [4, 0, "nan"], [17, 0, "-inf"], [40, 0, "nan"]]},
    {"init_scale": 1000.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 3, "optimizers": 2,
     "bad": [[0, 1, "inf"], [7, 0, "nan"], [7, 1, "inf"], [20, 0, "inf"], [21, 1, "nan"], [22, 0, "inf"]]},
    {"init_scale": 1e38, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1, "optimizers": 1, "bad": []},
    {"init_scale": 3.0, "growth_factor": 1.001, "backoff_factor": 0.999, "growth_interval": 1, "optimizers": 2,
     "bad": [[k, k % 2, "nan"] for k in range(0, 48, 4)]},
]


def value(step, i):
    """In [-1, 1), exact in fp32."""
    return (((step * 7919 + i * 104729 + 12345) * 2654435761) % 2**32 >> 9) / 2**22 - 1


def run(case):
    options = {key: case[key] for key in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")}
    scaler = torch.amp.GradScaler("cpu", **options)
    weights = [torch.nn.Parameter(torch.tensor([value(o, i) for i in range(N)])) for o in range(case["optimizers"])]
    optimizers = [torch.optim.SGD([w], lr=0.125, momentum=0.5) for w in weights]
    after = []
    for step in range(STEPS):
        if step == 30:  # a checkpoint
            saved = json.loads(json.dumps(scaler.state_dict()))
            scaler = torch.amp.GradScaler("cpu")
            scaler.load_state_dict(saved)
        stepped = []
        for o, (w, optimizer) in enumerate(zip(weights, optimizers)):
            optimizer.zero_grad()
            x = torch.tensor([value(step + 100 * (o + 1), i) for i in range(N)])
            scaler.scale((w * x).mean()).backward()
            for bad_step, bad_optimizer, what in case["bad"]:
                if (bad_step, bad_optimizer) == (step, o):
                    w.grad[step % N] = float(what)
            if step % 3 == 0:
                scaler.unscale_(optimizer)
            before = w.detach().clone()
            scaler.step(optimizer)
            stepped.append(not torch.equal(before, w.detach()))
        if step == 25:
            scaler.update(512.0)
        else:
            scaler.update()
        after.append({"stepped": stepped, "state": scaler.state_dict(), "weights": [w.tolist() for w in weights]})
    return {**case, "after": after}


print('{"steps": %d, "size": %d, "cases": [' % (STEPS, N))
for number, case in enumerate(CASES):
    found = run(case)
    steps = found.pop("after")
    print(json.dumps(found)[:-1] + ', "after": [')
    print(",\n".join(json.dumps(step) for step in steps) + "]}" + ("," if number + 1 < len(CASES) else ""))
print("]}")
