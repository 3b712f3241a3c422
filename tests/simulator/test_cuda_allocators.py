"""Other ways to device memory: pools, memory made apart from its address, arrays; and graphs. All are charged to the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.cuda_programs import MIB, cuda, cuda_program
from tests.simulator.machines import make_machine
from tranche_simulator import SimulatedMachine

POOL = """
A = cu.CUmemPool_attribute
def pool_state(pool):
    names = ("RESERVED_MEM_CURRENT", "USED_MEM_CURRENT")
    return [int(check(cu.cuMemPoolGetAttribute(pool, getattr(A, "CU_MEMPOOL_ATTR_" + name)))) >> 20 for name in names]
"""

VIRTUAL = """
def properties(kind=1, ordinal=0, shared=0):
    made = cu.CUmemAllocationProp()
    made.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cu.CUmemLocationType(kind); made.location.id = ordinal
    made.requestedHandleTypes = cu.CUmemAllocationHandleType(shared)
    return made

def rights(flags=3):
    made = cu.CUmemAccessDesc()
    made.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; made.location.id = 0
    made.flags = cu.CUmemAccess_flags(flags)
    return [made]

def mapped(handle, size, at=None):
    place = at or check(cu.cuMemAddressReserve(size, 0, 0, 0))
    check(cu.cuMemMap(place, size, 0, handle, 0)); check(cu.cuMemSetAccess(place, size, rights(), 1))
    return place
"""


@pytest.fixture
def t4(tmp_path: Path) -> SimulatedMachine:
    machine = make_machine(tmp_path, "T4")
    machine.set_context_memory(256 * MIB)
    return machine


def test_a_pool_takes_much_at_a_time_and_gives_back_when_somebody_waits(t4: SimulatedMachine) -> None:
    code = (
        POOL
        + """
context(); before = free(); pool = check(cu.cuDeviceGetDefaultMemPool(0)); told = []
held = [check(cu.cuMemAllocAsync(20 << 20, 0)) for _ in range(3)]
told.append(pool_state(pool) + [before - free() >> 20])
for memory in held[1:]: check(cu.cuMemFreeAsync(memory, 0))
told.append(pool_state(pool) + [before - free() >> 20])
check(cu.cuStreamSynchronize(0))
told.append(pool_state(pool) + [before - free() >> 20])
check(cu.cuMemFree(held[0])); check(cu.cuCtxSynchronize())
tell(told + [pool_state(pool) + [before - free() >> 20]])
"""
    )
    assert cuda(t4, code) == [[64, 60, 64], [64, 20, 64], [32, 20, 32], [0, 0, 0]]


def test_a_threshold_keeps_memory(t4: SimulatedMachine) -> None:
    code = (
        POOL
        + """
context(); pool = check(cu.cuDeviceGetDefaultMemPool(0))
check(cu.cuMemPoolSetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cu.cuuint64_t(1 << 30)))
check(cu.cuMemFreeAsync(check(cu.cuMemAllocAsync(3 << 30, 0)), 0)); check(cu.cuCtxSynchronize()); told = [pool_state(pool)]
check(cu.cuMemPoolTrimTo(pool, 0)); told.append(pool_state(pool))
tell(told)
"""
    )
    assert cuda(t4, code) == [[1024, 0], [0, 0]]


def test_what_pools_keep_is_there_for_others(t4: SimulatedMachine) -> None:
    code = (
        POOL
        + """
context(); check(cu.cuMemFreeAsync(check(cu.cuMemAllocAsync(12 << 30, 0)), 0))
tell([code(cu.cuMemAlloc(12 << 30)), code(cu.cuMemAllocAsync(12 << 30, 0)), code(cu.cuMemAllocAsync(0, 0))])
"""
    )
    assert cuda(t4, code) == [0, 2, 1]


def test_a_pool_of_the_programs_own(t4: SimulatedMachine) -> None:
    code = (
        POOL
        + """
context(); before = free(); wanted = cu.CUmemPoolProps(); wanted.allocType = cu.CUmemAllocationType(1); wanted.maxSize = 1 << 30
wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; wanted.location.id = 0
pool = check(cu.cuMemPoolCreate(wanted)); check(cu.cuDeviceSetMemPool(0, pool))
memory = check(cu.cuMemAllocAsync(900 << 20, 0))
told = [code(cu.cuMemAllocFromPoolAsync(200 << 20, pool, 0)), int(check(cu.cuDeviceGetMemPool(0))) == int(pool)]
check(cu.cuMemFreeAsync(memory, 0)); check(cu.cuMemPoolDestroy(pool))
tell(told + [before - free(), int(check(cu.cuDeviceGetMemPool(0))) == int(pool)])
"""
    )
    assert cuda(t4, code) == [2, True, 0, False]


def test_one_piece_of_memory_at_two_addresses(t4: SimulatedMachine) -> None:
    code = (
        VIRTUAL
        + """
context(); before = free(); size = 4 << 20
handle = check(cu.cuMemCreate(size, properties(), 0)); first, second = mapped(handle, size), mapped(handle, size)
sent, got = bytearray(b"x" * 100), bytearray(100)
check(cu.cuMemcpyHtoD(int(first) + 1000, address(sent), 100)); check(cu.cuMemcpyDtoH(address(got), int(second) + 1000, 100))
told = [got == sent, before - free() >> 20]
check(cu.cuMemRelease(handle)); told.append(before - free() >> 20)
check(cu.cuMemUnmap(first, size)); told += [before - free() >> 20, code(cu.cuMemcpyDtoH(address(got), first, 1))]
check(cu.cuMemUnmap(second, size)); told += [before - free() >> 20, code(cu.cuMemRelease(handle))]
told += [code(cu.cuMemAddressFree(first, size)), code(cu.cuMemAddressFree(second, size))]
tell(told)
"""
    )
    assert cuda(t4, code) == [True, 4, 4, 4, 1, 0, 1, 0, 0]


def test_memory_without_rights_cannot_be_touched(t4: SimulatedMachine) -> None:
    code = (
        VIRTUAL
        + """
context(); size = 2 << 20; got = bytearray(1)
handle = check(cu.cuMemCreate(size, properties(), 0)); place = check(cu.cuMemAddressReserve(2 * size, 0, 0, 0))
told = [code(cu.cuMemMap(place, 2 * size, 0, handle, 0)), code(cu.cuMemMap(int(place) + size, size, 0, handle, 0))]
told += [code(cu.cuMemMap(int(place) + size, size, 0, handle, 0)), code(cu.cuMemcpyDtoH(address(got), int(place) + size, 1))]
told.append(code(cu.cuMemSetAccess(int(place) + size, size, rights(), 1)))
told += [code(cu.cuMemcpyDtoH(address(got), int(place) + size, 1)), code(cu.cuMemAddressFree(place, 2 * size))]
told.append(check(cu.cuMemGetAllocationGranularity(properties(), cu.CUmemAllocationGranularity_flags(0))))
tell(told + [code(cu.cuMemCreate(size + 1, properties(), 0)), code(cu.cuMemAddressReserve(1, 0, 0, 0))])
"""
    )
    assert cuda(t4, code) == [1, 0, 1, 1, 0, 0, 1, 2 * MIB, 1, 1]


def test_what_is_made_apart_from_its_address_is_charged_where_it_lies(t4: SimulatedMachine) -> None:
    code = (
        VIRTUAL
        + """
context(); before = free()
host = code(cu.cuMemCreate(1 << 30, properties(kind=3), 0)); told = [host, before - free()]
told += [code(cu.cuMemCreate(gib << 30, properties(), 0)) for gib in (14, 2)]
tell(told + [code(cu.cuMemAlloc(2 << 30))])
"""
    )
    assert cuda(t4, code) == [0, 0, 0, 2, 2]


def test_memory_goes_to_another_process(t4: SimulatedMachine) -> None:
    code = (
        VIRTUAL
        + """
import array, socket
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    context(); fd = socket.recv_fds(theirs, 1, 1)[1][0]; before = free()
    handle = check(cu.cuMemImportFromShareableHandle(fd, cu.CUmemAllocationHandleType(1)))
    place = mapped(handle, 2 << 20); got = bytearray(3); check(cu.cuMemcpyDtoH(address(got), place, 3))
    tell([got.decode(), before - free()]); os._exit(0)
context(); handle = check(cu.cuMemCreate(2 << 20, properties(shared=1), 0)); place = mapped(handle, 2 << 20)
sent = bytearray(b"abc"); check(cu.cuMemcpyHtoD(place, address(sent), 3))
fd = check(cu.cuMemExportToShareableHandle(handle, cu.CUmemAllocationHandleType(1), 0))
socket.send_fds(ours, [b"x"], [int(fd)]); os.waitpid(child, 0)
"""
    )
    assert cuda(t4, code) == ["abc", 0]


def test_everything_goes_with_the_context(t4: SimulatedMachine) -> None:
    code = (
        VIRTUAL
        + """
mine = context(); mapped(check(cu.cuMemCreate(1 << 30, properties(), 0)), 1 << 30); check(cu.cuMemAllocAsync(1 << 30, 0))
check(cu.cuMemAlloc(1 << 30)); check(cu.cuCtxDestroy(mine)); context(); tell(check(cu.cuMemGetInfo())[1] - free())
"""
    )
    assert cuda(t4, code) == 256 * MIB


def test_arrays_and_rows(t4: SimulatedMachine) -> None:
    code = """
context(); before = free()
shape = cu.CUDA_ARRAY_DESCRIPTOR(); shape.Width, shape.Height, shape.NumChannels = 1000, 1000, 4
shape.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
made = check(cu.cuArrayCreate(shape)); told = [before - free() >> 20]
sent, got = bytearray(os.urandom(64)), bytearray(64)
copy = cu.CUDA_MEMCPY2D(); T = cu.CUmemorytype
copy.srcMemoryType, copy.srcHost, copy.srcPitch = T.CU_MEMORYTYPE_HOST, address(sent), 16
copy.dstMemoryType, copy.dstArray, copy.dstXInBytes, copy.dstY = T.CU_MEMORYTYPE_ARRAY, made, 32, 7
copy.WidthInBytes, copy.Height = 16, 4
check(cu.cuMemcpy2D(copy)); check(cu.cuMemcpyAtoH(address(got), made, 8 * 16000 + 32, 16)); told.append(got[:16] == sent[16:32])
copy.dstXInBytes = 15990; told.append(code(cu.cuMemcpy2D(copy)))
told.append(check(cu.cuArrayGetDescriptor(made)).Width)
tell(told + [code(cu.cuArrayDestroy(made)), code(cu.cuArrayDestroy(made)), before - free()])
"""
    assert cuda(t4, code) == [16, True, 1, 1000, 0, 400, 0]


def test_a_graph_takes_the_time_of_its_kernels(t4: SimulatedMachine) -> None:
    t4.set_time_scale(0.01)
    code = """
context(); work = kernel(); graph = check(cu.cuGraphCreate(0)); nodes = []
for milliseconds in (100, 200, 300):
    wanted = cu.CUDA_KERNEL_NODE_PARAMS(); wanted.func = work
    wanted.gridDimX, wanted.gridDimY, wanted.gridDimZ, wanted.blockDimX, wanted.blockDimY, wanted.blockDimZ = 1000, 1, 1, 64, 1, 1
    wanted.kernelParams = ((milliseconds * 1000,), (ctypes.c_ulonglong,))
    nodes.append(check(cu.cuGraphAddKernelNode(graph, nodes[-1:], len(nodes[-1:]), wanted)))
runnable = check(cu.cuGraphInstantiate(graph, 0)); check(cu.cuGraphDestroy(graph))
launch(work, 10**7); start = event()
for _ in range(2): check(cu.cuGraphLaunch(runnable, 0))
end = event(); check(cu.cuEventSynchronize(end))
tell([check(cu.cuEventElapsedTime(start, end)), code(cu.cuGraphExecDestroy(runnable)), code(cu.cuGraphLaunch(runnable, 0))])
"""
    elapsed, destroyed, late = cuda(t4, code)
    assert elapsed == pytest.approx(12, abs=0.01)
    assert (destroyed, late) == (0, 400)


def test_other_processes_see_what_pools_and_handles_hold(t4: SimulatedMachine) -> None:
    code = (
        VIRTUAL
        + "context(); check(cu.cuMemAllocAsync(1 << 30, 0)); check(cu.cuMemCreate(2 << 30, properties(), 0)); tell(1); wait()"
    )
    with cuda_program(t4, code) as program:
        program.told()
        assert [client.memory for client in t4.clients()] == [(256 + 3 * 1024) * MIB]
        program.kill()
        assert t4.clients() == ()
