# The extension is cffi's: its members are described by dpdk_ext/binding/core.cdef.txt.
from typing import Any

ffi: Any
lib: Any
