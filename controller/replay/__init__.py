"""Replay: a run trained over a recorded grid in pure arithmetic, under the live cycle's decisions.

grid.py       a recorded series: values, and grams over any time
world.py      the run: boundaries, switches that take time and fail, what is charged
views.py      the run as an `Observation`, as a daemon would see it
forecasts.py  the forecast that rules get: own, perfect, persistence, or a file
exogenous_forecast.py   the same with day-ahead wind, sun and weather
weather_file.py         a recorded zone with such forecasts
weather_labels.py       which hours its rows are for, as judged at each moment
drivers.py    what decides: our cycle (`cycle/cycle.py`) through its two ports, or a rival rule
bounds.py     the oracle, and the bound below it
regret.py     the loss of our plan against hindsight, split into forecast and planning
bench.py      `wattmesh policy bench`: cells, rows, processes
stream_file.py   a stream of jobs, as a file says it
stream_rows.py   its rows
stream_demand.py  the caps that demand response would have set over a trace
stream_bench.py  `wattmesh policy bench --jobs`: the stream under each rule, and the bound
"""
