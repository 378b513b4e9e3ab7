"""Converts arrays of any library for _core: on the CPU, without autograd, in a type that _core reads."""
from __future__ import annotations

import sys
from typing import Any, Mapping, Sequence

import numpy as np

from ._errors import input_error

#: A numpy array, a torch tensor, or anything else that supports DLPack or the buffer protocol.
ArrayLike = Any

#: An array of numpy.
Array = np.ndarray[Any, Any]

#: Tensors by name, whole ("out") or a list with one part for each rank; or one such mapping per rank.
Tensors = Any


def is_torch(array: Any) -> bool:
    return hasattr(array, "detach") and hasattr(array, "cpu")


def local_part(tensor: Any) -> Any:
    """A plain torch.Tensor with the data of this process: waits for an asynchronous result; a DTensor gives the rows
    that this rank owns. InputError for subclasses without memory of their own (quantised, fake, functional)."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor) or type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    name = type(tensor).__name__
    if hasattr(tensor, "placements") and hasattr(tensor, "to_local"):
        for placement in tensor.placements:
            if placement.is_partial():
                raise input_error(f"a {name} holds sums that are not added up yet: {placement}",
                                  "redistribute it to Shard or Replicate first")
        return local_part(tensor.to_local())
    if hasattr(tensor, "trigger_wait"):
        return local_part(tensor.trigger_wait())
    try:
        plain = tensor.as_subclass(torch.Tensor)
        has_memory = plain.numel() == 0 or plain.device.type != "cpu" or plain.data_ptr() != 0
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise input_error(f"a tensor of type {name} cannot be read: {error}",
                          "give a plain torch.Tensor") from error
    if not has_memory or plain.device.type == "meta":
        raise input_error(f"a tensor of type {name} holds no numbers on this device",
                          "give a plain torch.Tensor: dequantise it, or take its inner tensor")
    return plain


def whole_tensor(tensor: Any) -> Any:
    """A whole DTensor, a collective call for every rank of its mesh; anything else unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "placements") and hasattr(tensor, "full_tensor") else tensor


def on_host(array: ArrayLike) -> Any:
    """The array in host memory. Tensors of a GPU are copied, all others are not."""
    if is_torch(array):
        array = local_part(array).detach()
        if array.device.type != "cpu":
            try:
                array = array.cpu()
            except (RuntimeError, NotImplementedError) as error:
                raise input_error(f"a tensor of {array.device} cannot be copied to the host: {error}") from error
        # A lazily negated view: no protocol supports it.
        return array.resolve_neg() if hasattr(array, "resolve_neg") else array
    if hasattr(array, "is_fully_addressable"):  # of JAX: DLPack does not hand out one that lies on several devices
        if not array.is_fully_addressable:
            raise input_error("an array of JAX has parts that other processes hold",
                              "gather it first: jax.experimental.multihost_utils.process_allgather")
        array = np.asarray(array)
    if isinstance(array, (list, tuple, float, int)):
        return np.asarray(array, dtype=np.float64)
    if isinstance(array, np.ndarray):
        if array.dtype == object:
            raise input_error("an array of Python objects is no tensor", "its rows may differ in length")
        if array.dtype.name == "bfloat16":  # of ml_dtypes, which supports no protocol
            return array.astype(np.float32)
        # Neither DLPack nor the buffer protocol supports another byte order or unaligned elements.
        if not array.dtype.isnative or not array.flags.aligned:
            return array.astype(array.dtype.newbyteorder("="))
    return array


def as_numpy(array: ArrayLike) -> Array:
    """The array in numpy, on the host, without autograd; bfloat16 as float32."""
    host = on_host(array)
    if is_torch(host) and str(host.dtype) == "torch.bfloat16":
        host = host.float()
    return np.asarray(host)


def integers(values: Any, name: str) -> Array:
    """A list of whole numbers as int64, in one dimension; also takes [1, n], the shape of Megatron's boundaries, and
    whole numbers in a floating-point type."""
    array = np.asarray(on_host(values) if not isinstance(values, (list, tuple)) else values)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.dtype.kind == "f":
        array = _whole(array, name)
    if array.dtype.kind not in "iu":
        raise input_error(f"{name} must be whole numbers: {array.dtype}", "int32 or int64")
    if array.ndim != 1:
        raise input_error(f"{name} must have one dimension: shape {list(array.shape)}")
    if array.dtype == np.uint64 and int(array.max()) > np.iinfo(np.int64).max:  # numpy 1 compares them as float64
        raise input_error(f"{name} holds a number that is too large: {array.max()}")
    return np.ascontiguousarray(array, np.int64)


def _whole(array: Array, name: str) -> Array:
    """The whole numbers of a floating-point array. From 2^53 on a float64 leaves out some, so they are refused."""
    is_whole = (array == np.floor(array)) & (np.abs(array) < 2.0 ** 53)
    if not is_whole.all():
        at = int(np.argmin(is_whole.ravel()))
        raise input_error(f"{name} must be whole numbers: {array.ravel()[at]} at {at}", "int32 or int64")
    return array.astype(np.int64)


def records(tensors: Tensors) -> list[tuple[str, list[tuple[str, Any]]]]:
    """[(path, [(name, array)])], the form that _core takes: one record, or one for each rank."""
    if isinstance(tensors, Mapping):
        return [("tensors", _named(tensors))]
    if isinstance(tensors, Sequence) and tensors and all(isinstance(one, Mapping) for one in tensors):
        if len(tensors) == 1:
            return [("tensors", _named(tensors[0]))]
        return [(f"tensors[{rank}]", _named(one)) for rank, one in enumerate(tensors)]
    raise input_error(f"tensors must be given by name: {type(tensors).__name__}",
                      'a dict like {"out": array}, or a list with one dict for each rank')


def _named(tensors: Mapping[str, Any]) -> list[tuple[str, Any]]:
    named = []
    for name, array in tensors.items():
        try:
            str(name).encode()
        except UnicodeEncodeError:
            raise input_error(f"the name of a tensor is no Unicode: {name!r}") from None
        if array is None:
            named.append((str(name), None))
            continue
        array = whole_tensor(array)
        if isinstance(array, (list, tuple)) and array and all(hasattr(part, "shape") for part in array):
            named += [(f"{name}.rank{rank}", on_host(part)) for rank, part in enumerate(array)]
        else:
            named.append((str(name), on_host(array)))
    for name, array in named:
        if array is None:
            continue
        # Without this check, types that no protocol supports would only be reported as unreadable.
        if isinstance(array, np.ndarray) and array.dtype not in (np.float16, np.float32, np.float64):
            raise input_error(f'"{name}" has a type that is not read: {array.dtype}',
                              "float64, float32, float16 or bfloat16 (torch)")
    return named
