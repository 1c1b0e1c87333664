"""The keys of `[carbon]`: which grid signals to account with and to decide on.

Invariant: secrets are never in the file itself; a key that needs one names a file that only its
owner can read.
"""

from typing import Literal

from pydantic import Field

from wattmesh.controller.settings.exogenous import ExogenousSection
from wattmesh.controller.settings.section import File, Section, Time
from wattmesh.integrations.carbon.reading.json_shape import JsonShape
from wattmesh.integrations.carbon.sources import JsonChoices, SourceSettings


class EiaSection(Section):
    """eia930: how the intensity is computed from the fuel mix."""

    label: Literal["ending", "starting"] = "ending"
    """Whether the label of an hour names its end or its start. EIA documents the end; some
    authorities report the start."""
    factors: dict[str, float] = Field(default_factory=dict, examples=[{"NG": 410.0}])
    """Your own emission factors by fuel code, g/kWh. Each replaces the direct factor of that fuel
    in docs/carbon-signals.md."""


class EntsoeSection(Section):
    """entsoe: how the intensity is computed from the mix."""

    factors: dict[str, float] = Field(default_factory=dict, examples=[{"B02": 1050.0}])
    """Your own emission factors by type of production (B01 to B25), g/kWh. Each replaces the direct
    factor of that type in docs/carbon-signals.md."""


class HttpJsonSection(Section):
    """http_json: how to ask the service, and how to read its answer."""

    url: str = Field(examples=["https://grid.example/intensity/{zone}?start={start}&end={end}"])
    """Address of past values. {zone}, {start}, {end} and {hours} (from the start until now) are
    replaced."""
    forecast_url: str = Field(
        default="", examples=["https://grid.example/forecast/{zone}?hours={hours}"]
    )
    """Address of the newest forecast, on the same host; {hours} is how far ahead it is asked for.
    "" if there is none."""
    rows: str = Field(default="", examples=["data.history"])
    """Path to the list of rows in the answer, keys joined by dots; "" if the answer is the list."""
    forecast_rows: str = Field(default="", examples=["data.forecast"])
    """Path to the list of rows in the forecast's answer; "" if the answer is the list."""
    start: str = Field(default="start", examples=["start"])
    """Path in a row to the start of the interval: ISO 8601 with an offset, or seconds since 1970.
    "" if a row has only `end`."""
    end: str = Field(default="", examples=["end"])
    """Path in a row to the end of the interval; "" if a row has none: it is then `interval_s` after
    the start."""
    value: str = Field(default="value", examples=["value"])
    """Path in a row to the value."""
    forecast_value: str = Field(default="value", examples=["forecast"])
    """Path in a row of the forecast to the value."""
    estimated: str = Field(default="", examples=["isEstimated"])
    """Path in a row to a flag that is true if the value is estimated; "" if there is none."""
    issued: str = Field(default="", examples=["generated_at"])
    """Path in the forecast's answer to the time it was issued; "" if there is none."""
    unit: str = Field(examples=["g/kWh"])
    """Unit of the values: g/kWh, kg/MWh, t/GWh or lbs/MWh. A percentile has no grams and is
    refused."""
    interval_s: float = Field(default=3600.0, ge=60, le=86400)
    """Length of every interval, seconds. Intervals begin at multiples of it."""
    cadence_s: float | None = Field(default=None, ge=60, le=86400, examples=[900.0])
    """Seconds between two polls; default: one interval."""
    lag_s: float = Field(default=0.0, ge=0, le=30 * 86400.0)
    """Usual delay between the end of an interval and the publication of its value, seconds."""
    forecast_hours: float = Field(default=48.0, gt=0, le=240)
    """Hours ahead that the forecast reaches."""
    longest_hours: float = Field(default=240.0, ge=1, le=10_000)
    """Most hours that one request may ask for."""
    token_header: str = "Authorization"
    """Header that carries the token of `token_file`."""
    token_scheme: str = "Bearer"
    """Word before the token in that header; "" for none."""

    def choices(self) -> JsonChoices:
        """Give what opening the source needs.

        Raises:
            InputInvalid: a unit, an address or a path that cannot be.
        """
        return JsonChoices(
            shape=JsonShape(
                url=self.url,
                forecast_url=self.forecast_url,
                rows=self.rows,
                forecast_rows=self.forecast_rows,
                start=self.start,
                end=self.end,
                value=self.value,
                forecast_value=self.forecast_value,
                estimated=self.estimated,
                issued=self.issued,
                unit=self.unit,
            ),
            interval_s=self.interval_s,
            cadence_s=self.cadence_s,
            lag_s=self.lag_s,
            forecast_hours=self.forecast_hours,
            longest_hours=self.longest_hours,
            token_header=self.token_header,
            token_scheme=self.token_scheme,
        )


class CarbonSourceSection(Section):
    """One grid signal."""

    provider: Literal[
        "neso",
        "electricity_maps",
        "watttime",
        "eia930",
        "entsoe",
        "open_electricity",
        "static",
        "http_json",
        "csv",
    ] = Field(examples=["neso"])
    """`neso` (Great Britain, live, no key needed), `electricity_maps`, `watttime`, `eia930` (US)
    and `entsoe` (Europe), both computed from the fuel mix, `open_electricity` (Australia), `static`
    (a number of yours), `http_json` (any service that answers JSON) or `csv` (a recorded trace).
    `wattmesh carbon providers` says what each serves."""
    zone: str = Field(examples=["GB"])
    """Zone of the grid, as the provider names it."""
    key_file: File | None = Field(default=None, examples=["/etc/wattmesh/carbon.key"])
    """electricity_maps, eia930, entsoe, open_electricity: file with the API key or token, readable
    by its owner only (mode 0600)."""
    username: str = Field(default="", examples=["operator"])
    """watttime: user name."""
    password_file: File | None = Field(default=None, examples=["/etc/wattmesh/watttime.password"])
    """watttime: file with the password, readable by its owner only (mode 0600)."""
    token_file: File | None = Field(default=None, examples=["/etc/wattmesh/grid.token"])
    """http_json: file with a token, readable by its owner only (mode 0600)."""
    kind: Literal["average", "marginal"] | None = Field(default=None, examples=["average"])
    """static, http_json: whether the values are average or marginal intensities."""
    factor: Literal["direct", "lifecycle"] | None = Field(default=None, examples=["direct"])
    """electricity_maps: emission factors to ask for (default: lifecycle). static, http_json:
    emission factors that the values include."""
    gas: Literal["CO2", "CO2eq"] | None = Field(default=None, examples=["CO2"])
    """static, http_json: gases that the values include."""
    granularity: Literal["hourly", "15_minutes", "5_minutes"] = "hourly"
    """electricity_maps: length of the intervals. Not every plan includes the finer ones."""
    api_version: Literal["v4", "v3"] = "v4"
    """electricity_maps: version of its API."""
    signal_type: Literal["co2_moer", "co2_aoer"] = "co2_moer"
    """watttime: `co2_moer` (marginal, every 5 minutes) or `co2_aoer` (average, hourly, no
    forecast). WattTime's index is not offered: it is a percentile and has no grams."""
    g_per_kwh: float | None = Field(default=None, gt=0, le=2000, examples=[250.0])
    """static: grams per kilowatt-hour."""
    eia930: EiaSection | None = None
    """eia930: how the intensity is computed from the fuel mix."""
    entsoe: EntsoeSection | None = None
    """entsoe: how the intensity is computed from the mix."""
    http_json: HttpJsonSection | None = None
    """http_json: how the service is asked and read."""
    file: File | None = Field(default=None, examples=["/etc/wattmesh/trace.csv"])
    """csv: file with the recorded trace."""
    starts_at: Time | None = Field(default=None, examples=["2023-06-14T00:00:00Z"])
    """csv: time in the recording at which the replay begins; default: its first one."""
    plays_at: Time | None = Field(default=None, examples=["2026-12-01T00:00:00Z"])
    """csv: time of today's clock at which the replay begins; default: the start of the daemon."""
    compress: float = Field(default=1.0, ge=1e-6, le=1e6)
    """csv: seconds of the recording that are replayed in one second."""
    base_url: str = Field(default="", examples=["https://api.carbonintensity.org.uk"])
    """neso, electricity_maps, watttime, eia930, entsoe, open_electricity: another address of the
    same API, e.g. a mirror inside the cluster."""
    stale_after_s: float | None = Field(default=None, gt=0, le=1e9, examples=[5400.0])
    """Seconds without an answer after which wattmesh takes no carbon-motivated action, whatever it
    knows of the hours ahead. Default: three days, which is also the age up to which a profile of
    stored history counts."""

    def source(self) -> SourceSettings:
        """Give what opening the source needs.

        Raises:
            InputInvalid: `http_json` has a unit or an address that cannot be.
        """
        eia930, entsoe = self.eia930 or EiaSection(), self.entsoe or EntsoeSection()
        return SourceSettings(
            provider=self.provider,
            zone=self.zone,
            file=self.file,
            starts_at=self.starts_at,
            plays_at=self.plays_at,
            compress=self.compress,
            base_url=self.base_url,
            key_file=self.key_file,
            username=self.username,
            password_file=self.password_file,
            token_file=self.token_file,
            kind=self.kind or "",
            factor=self.factor or "",
            gas=self.gas or "",
            granularity=self.granularity,
            api_version=self.api_version,
            signal_type=self.signal_type,
            g_per_kwh=self.g_per_kwh,
            eia_factors=eia930.factors,
            eia_label=eia930.label,
            entsoe_factors=entsoe.factors,
            json=self.http_json.choices() if self.http_json else None,
        )


class CarbonFallbackSection(CarbonSourceSection):
    """A signal of the same kind that prices joules while the accounting signal is missing."""

    scale: float = Field(gt=0, le=10, examples=[1.08])
    """Factor by which its values are multiplied to stand in for the accounting signal. Write 1 only
    if you know that both report the same values."""


class CarbonSection(Section):
    """The grid signals: one to account with, one to decide on."""

    accounting: CarbonSourceSection
    """Signal that joules are priced with (average)."""
    decision: CarbonSourceSection | None = None
    """Signal that decisions rest on; default: the accounting signal."""
    accounting_fallback: tuple[CarbonFallbackSection, ...] = Field(default=(), strict=False)
    """Signals that stand in, in this order, while the accounting signal is later than usual. They
    must have its kind, factor and gas. Their grams stand in lines of their own."""
    report: tuple[CarbonSourceSection, ...] = Field(default=(), strict=False)
    """Further signals (lifecycle, marginal) that reports show in lines of their own. They are never
    added to the others."""
    exogenous: tuple[ExogenousSection, ...] = Field(default=(), strict=False)
    """Forecasts of wind, sun, load and weather of the decision signal's zone. Our own forecast of
    that signal learns from them and then counts as issued; without them it goes by the past."""
