"""What a caller has set, on a cluster, in a hook of git or behind a proxy, changes nothing of what tests see."""

import os
import re
from pathlib import Path

_SET_BY_CALLERS = re.compile(
    r"(HF|HUGGINGFACE|TRANSFORMERS|DATASETS|GIT|GITHUB|LC|MPL|CLICOLOR|TTY)_.*|.*_proxy|LANG|LANGUAGE|COLUMNS|LINES"
    r"|TERMINAL_WIDTH|NO_COLOR|FORCE_COLOR|PY_COLORS|MPLBACKEND|MATPLOTLIBRC|SOURCE_DATE_EPOCH|PYTHONWARNINGS"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT",
    re.IGNORECASE,
)
for _name in filter(_SET_BY_CALLERS.fullmatch, list(os.environ)):
    del os.environ[_name]
# Models of tests are so small that threads cost more than they give, and `pytest -n` runs several processes at once.
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
# Where there is no GPU, kernels of Triton run in its interpreter, which is chosen when Triton is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
