"""The transformer of parallel_transformer.py, fully sharded: four ranks hold a quarter of it each.

    python3 examples/fsdp_transformer.py              # four threads
    mpirun -n 4 python3 examples/fsdp_transformer.py  # four processes

Every block is a group that is gathered when it runs; parameters, gradients and the optimizer's states are shards.
Two batches make a step; only the second one communicates gradients.
"""
import tessera as ts
from parallel_transformer import Transformer, batch
from tessera import nn

STEPS, ACCUMULATE = 40, 2


def work():
    ts.manual_seed(0)
    model, sent = Transformer(), {"all_gather": 0, "reduce_scatter": 0}
    for block in model.layers:
        ts.fully_shard(block)
    ts.fully_shard(model)

    def note(event, group, size, op, ranks):
        if event in sent:
            sent[event] += size
    model.watch(note)
    optimizer = ts.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        for i in range(ACCUMULATE):
            model.set_requires_gradient_sync(i + 1 == ACCUMULATE)
            x, y = batch(ts.rank(), step * ACCUMULATE + i)  # of its own
            loss = nn.cross_entropy(model(x).transpose(1, 2), y) * (1 / ACCUMULATE)
            loss.backward()
        ts.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    mine = sum(p.to_local().detach().numpy().size for p in model.state_dict().values())
    return float(loss) * ACCUMULATE, mine, sent


if __name__ == "__main__":
    if ts.mpi_launched():
        ts.init()
    ranks = ts.run_ranks(4, work)
    if ts.rank() == 0:
        loss, mine, sent = ranks[0]
        print(f"step {STEPS}  loss {loss:.4f}")
        print(f"rank 0 holds {mine} of {sum(r[1] for r in ranks)} elements; "
              f"a step gathers {sent['all_gather'] // STEPS} bytes and reduces {sent['reduce_scatter'] // STEPS}")
