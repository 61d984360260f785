"""Learning: one loop for every objective. `unmask.train(run, folder)` is `unmask.train.loop.train`: the room's name is its verb."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask.train.loop import Result
    from unmask.train.run import Run


class Room(ModuleType):
    def __call__(self, run: Run, out: str | Path) -> Result:
        """Learn what a recipe says, into a folder."""
        from unmask.train.loop import train

        return train(run, Path(out))


sys.modules[__name__].__class__ = Room
