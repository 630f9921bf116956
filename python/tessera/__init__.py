"""tessera: exported PyTorch programs, ATen ops and DTensors on CPU ranks, without PyTorch.

    import numpy as np, tessera as ts

    def work():
        mesh = ts.init_device_mesh("dp=2,tp=2")
        x = ts.distribute_tensor(np.ones((8, 6), np.float32), mesh, "S(0)R")
        return (x @ x.T).full_tensor()

    ts.run_ranks(4, work)
"""
from . import nn, optim
from ._call import call
from ._context import (Error, RankError, barrier, define_group, init, manual_seed, mpi_launched, random_state, rank, set_flight, set_random_state,
                       set_timeout, world_size)
from ._library import path as library_path
from ._library import quick as _quick
from ._ranks import run_ranks
from . import checkpoint
from .autograd import backward, enable_grad, grad, is_grad_enabled, no_grad, set_grad_enabled
from .data_parallel import DistributedDataParallel
from .debug import CommDebugMode, comm_debug, explicit_redistribution, flight, implicit_replication
from .distribute import distribute_module
from .dtensor import DTensor
from .factories import distribute_tensor, empty, from_local, full, ones, rand, randn, unflatten, zeros
from .fsdp import DataParallelMeshDims, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, UnshardHandle, fully_shard, meta
from .mesh import DeviceMesh, Mesh, current_mesh, init_device_mesh
from .module import Module, ModuleDict, ModuleList
from .optim import clip_grad_norm_, clip_grad_value_
from .parallel import (ColwiseParallel, ParallelStyle, PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput, RowwiseParallel, SequenceParallel,
                       loss_parallel, parallelize_module)
from .placements import Partial, Placement, Replicate, Shard
from .plan import Plan, Spec, local_layout, plan_load, plan_redistribute, plan_save, propagate
from .program import Program
from .tensor import Tensor, tensor
from .shard import shard, tensor_parallel_transformation
from .train import Step, Trainer, Training, train

open = load = Program
__version__ = _quick.tess_version().decode()
