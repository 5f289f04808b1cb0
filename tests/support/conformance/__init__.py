"""Contracts 2 to 7 as tests of one subject: tests/mixers and tests/models run them on theirs.

A test module imports all names from here and has `pytest_generate_tests` call :func:`parametrize`.
"""

from __future__ import annotations

from .binding import *  # noqa: F403
from .cut import *  # noqa: F403
from .finite import *  # noqa: F403
from .memory import *  # noqa: F403
from .module import *  # noqa: F403
from .neighbours import *  # noqa: F403
from .ownership import *  # noqa: F403
from .past import *  # noqa: F403
from .precision import *  # noqa: F403
from .refusal import *  # noqa: F403
