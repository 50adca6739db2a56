"""The main job on real data: a year of hourly weather, see :mod:`mdtim.weather`.

A further share of the known cells is hidden to score the fill; the file that is written keeps
every known value.
"""

from __future__ import annotations

from pathlib import Path

from mdtim.evaluation import Evaluation, evaluate
from mdtim.imputer import MDTIMImputer
from mdtim.tables.files import write_frame
from mdtim.weather import WEATHER_COLUMNS, nyc_weather


def run_demo(
    folder: Path,
    *,
    share: float = 0.1,
    adapt: bool = False,
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
        adapt=adapt,
        max_minutes=max_minutes,
        max_steps=max_steps,
        progress=progress,
    )
    evaluation, _ = evaluate(imputer, frame, share=share, seed=seed, fit=True)
    result = imputer.impute(frame)
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(result.values, folder / "filled.csv")
    result.report(folder / "report.html", evaluation, name="the weather of New York, 2013")
    return evaluation, imputer
