"""cpscope: the neutral referee for context-parallel attention.

    import cpscope
    scenario = cpscope.Scenario.load("thd_padding_p2p")   # or Scenario(text), Scenario.of(heads=8, ...)
    print(scenario.grade({"out": out}))                   # numpy or torch, packed order or by rank

`Scenario` is the main class: layout(), plan(), inputs(), oracle(), grade(), probe(), with_order(). `gather` collects the
tensors of all ranks of a real run; from_te, from_megatron, from_torch, from_ring_flash_attention, from_usp and from_magi
import the token orders of frameworks. Everything is computed on the CPU, with the GIL released.
"""
from ._processor import load_core

load_core()

from ._core import version as __version__  # noqa: E402
from ._errors import Complaint, Error, InputError, RefusedError, ScenarioError, UnavailableError
from .grade import Grade
from .layout import Layout, Plan, Sequence
from .order import Order, from_magi, from_megatron, from_ring_flash_attention, from_te, from_torch, from_usp
from .probe import ProbeReport, Question
from .scenario import Scenario, gather, shipped

__all__ = ["Complaint", "Error", "Grade", "InputError", "Layout", "Order", "Plan", "ProbeReport", "Question",
           "RefusedError", "Scenario", "ScenarioError", "Sequence", "UnavailableError", "__version__",
           "from_magi", "from_megatron", "from_ring_flash_attention", "from_te", "from_torch", "from_usp", "gather", "shipped"]
