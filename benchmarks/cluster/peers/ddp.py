"""Times PyTorch's DistributedDataParallel over gloo: a model on each node.

Samples are shared out equally, whatever the nodes' speed. With one node it is
PyTorch alone.
"""

import argparse
import os
import sys

import steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps.add_arguments(parser)
    options = parser.parse_args()
    replicas = int(os.environ["WORLD_SIZE"])
    index = int(os.environ["RANK"])
    import torch
    import torch.distributed
    import torch_models

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch_models.build(options.model, options.pixels, options.classes)
    # On processors this format is the faster one, and Keras has it.
    model = model.to(memory_format=torch.channels_last)
    own = steps.part(options.batch, replicas, index)
    x, y = (torch.from_numpy(values[own]) for values in steps.data(options))
    # This is a view: in memory channels are still the last axis.
    x = x.permute(0, 3, 1, 2)
    if replicas > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    # The gradients of replicas are averaged. With this weight, the average is
    # that of all samples, even if replicas have unequal numbers of them.
    weight = len(x) * replicas / options.batch

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        (loss * weight).backward()
        optimizer.step()
        return float(loss.detach())

    row = steps.measure(step, options)
    if replicas > 1:
        # So far the losses are those of this node's samples.
        losses = torch.tensor(row["losses"]) * (weight / replicas)
        torch.distributed.all_reduce(losses)
        row["losses"] = losses.tolist()
        sizes = [weight.numel() for weight in model.parameters()]
        theory = steps.all_reduce_mb(sum(sizes), replicas)
        row |= {"received_theory_mb": theory, "sent_theory_mb": theory}
    if index == 0:
        steps.report(row)
    if replicas > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
