"""cpscope: the neutral referee for context-parallel attention.

    import cpscope
    scenario = cpscope.Scenario.load("thd_padding_p2p")   # or Scenario(text), Scenario.of(heads=8, ...)
    print(scenario.grade({"out": out}))                   # numpy or torch, packed order or by rank

`Scenario` is the main class: layout(), plan(), inputs(), oracle(), grade(), probe(), with_order(). Its class methods from_te,
from_megatron, from_torch_cp, from_titan, from_magi, from_deepspeed, from_usp and from_ring_flash_attention read the objects of
frameworks. `gather` collects the tensors of all ranks of a real run, `watch` grades a live training run; the functions from_te, from_megatron, from_torch,
from_ring_flash_attention, from_usp, from_magi and from_vllm import token orders alone. Everything is computed on the CPU, with the GIL released.
"""
from ._processor import load_core

load_core()

from ._core import version as __version__  # noqa: E402
from . import testing  # noqa: E402
from ._errors import Complaint, Error, InputError, RefusedError, ScenarioError, ScheduleError, UnavailableError
from ._watch_judge import Verdict, WatchError
from .grade import Grade
from .html import Picture
from ._keys import ScenarioKeys, keys, keys_page
from .layout import Layout, Plan, Sequence
from .order import Order, from_magi, from_megatron, from_ring_flash_attention, from_te, from_torch, from_usp, from_vllm
from .probe import ProbeReport, Question
from .record import Difference, Record, diff, read_record, write_record
from .runs import Comparison, FaultReport, Forecast, Run, Timeline, WaysForecast, clusters, fault_list, faults
from .scenario import Scenario, gather, mask_picture, shipped
from .schedule import Block, Schedule, Step
from ._schedule_items import ItemComparison
from .watch import Call, Watch, watch

__all__ = ["Block", "Call", "Comparison", "Complaint", "Difference", "Error", "FaultReport", "Forecast", "Grade", "InputError", "ItemComparison", "Layout", "Order", "Picture",
           "Plan", "ProbeReport", "Question", "Record", "RefusedError", "Run", "Scenario", "ScenarioError", "ScenarioKeys",
           "Schedule", "ScheduleError", "Sequence", "Step", "Timeline", "UnavailableError", "Verdict", "Watch", "WatchError", "WaysForecast", "__version__", "clusters", "diff", "fault_list", "faults", "keys",
           "keys_page", "mask_picture", "read_record", "testing", "write_record",
           "from_magi", "from_megatron", "from_ring_flash_attention", "from_te", "from_torch", "from_usp", "from_vllm", "gather", "shipped", "watch"]
