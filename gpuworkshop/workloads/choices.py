"""What the settings of a run can be, by name: so that a command line knows them without loading more."""

from typing import Literal

DataPath = Literal["cpu-decode", "card-decode", "pre-decoded"]
Precision = Literal["fp32", "tf32", "bf16"]
MemoryFormat = Literal["contiguous", "channels_last"]
ReadsLoss = Literal["each step", "rarely", "with samples", "with outputs"]
Transform = Literal["device", "host"]
Calls = Literal["a batch", "a sample"]
