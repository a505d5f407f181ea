"""One rank of one engine in Python: plain, compile, ddp or deepspeed. Started by benchmarks/run; rank 0 prints one JSON line."""
import argparse, contextlib, json, os, re, time

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("engine", choices=["plain", "compile", "ddp", "deepspeed"])
p.add_argument("size"), p.add_argument("tokens"), p.add_argument("--steps", type=int), p.add_argument("--threads", type=int, default=1)
a = p.parse_args()
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
import numpy as np, torch
torch.set_num_threads(a.threads)
from model import SIZES, batches, build
c = dict(SIZES[a.size])
c["steps"] = a.steps or c["steps"]
tokens = torch.from_numpy(np.fromfile(a.tokens, dtype="<u2").astype("int64"))
m = build(c)
hyper = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
sync = lambda last: contextlib.nullcontext()
if a.engine == "deepspeed":
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed, logging
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config = {"train_micro_batch_size_per_gpu": c["micro"], "gradient_accumulation_steps": c["accumulation"], "gradient_clipping": 0.0,
              "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 0}}
    engine, _, _, _ = deepspeed.initialize(model=m, model_parameters=list(m.parameters()), optimizer=DeepSpeedCPUAdam(list(m.parameters()), adamw_mode=True, **hyper), config=config)
else:
    if a.engine == "ddp":
        torch.distributed.init_process_group("gloo")
        f = torch.nn.parallel.DistributedDataParallel(m, gradient_as_bucket_view=True)
        sync = lambda last: contextlib.nullcontext() if last else f.no_sync()
    else:
        f = torch.compile(m) if a.engine == "compile" else m
    optimizer = torch.optim.AdamW(m.parameters(), fused=True, **hyper)
times, losses = [], []
for step in batches(tokens, c, rank, ranks, c["micro"]):
    begin, total = time.perf_counter(), 0.0
    for i, (x, y) in enumerate(step):
        if a.engine == "deepspeed":
            loss = engine(x, y)
            engine.backward(loss)
            engine.step()
        else:
            with sync(i == len(step) - 1):
                loss = f(x, y)
                (loss / c["accumulation"]).backward()
        total += loss.item() / c["accumulation"]
    if a.engine != "deepspeed":
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    times.append((time.perf_counter() - begin) * 1e3)
    losses.append(total)
if ranks > 1:  # the mean over ranks, as trireme reports it
    both = torch.tensor(losses)
    torch.distributed.all_reduce(both)
    losses = (both / ranks).tolist()
peak = int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read()).group(1)) / 1e3
if rank == 0:
    print("RESULT " + json.dumps(dict(step_ms=times, loss_first=losses[0], loss_last=losses[-1], peak_rss_mb=round(peak, 1))), flush=True)
if torch.distributed.is_available() and torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
