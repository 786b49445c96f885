"""Screenshots for the documentation: made by tests, and compared with what the tests see.

``DOVETAIL_PICTURES=1`` writes them anew.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
BYTES_MAX = 150_000
COLOURS = 128
GRID = (24, 24)
"""The cells of which the mean brightness is compared: figures and fonts differ, a layout does
not."""
DIFFERENCE_MAX = 14.0
"""Of the brightness of two cells, on average, out of 255."""


def see(browser: Any, width: int, height: int, *, scheme: str = "light") -> None:
    """Show the page on a screen of this size, light or dark."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def refuse_another_look(browser: Any, name: str) -> None:
    """Fail if a picture of the documentation is not what the browser shows."""
    seen = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    path = ASSETS / name
    if os.environ.get("DOVETAIL_PICTURES"):
        seen.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    picture = Image.open(path).convert("RGB")
    assert path.stat().st_size < BYTES_MAX
    assert picture.size == seen.size
    difference = np.abs(_cells(picture) - _cells(seen)).mean()
    assert difference < DIFFERENCE_MAX, f"{name} is out of date: DOVETAIL_PICTURES=1 writes it"


def _cells(picture: Image.Image) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The mean brightness of the cells of a picture."""
    return np.asarray(picture.convert("L").resize(GRID, Image.Resampling.BOX), np.float64)
