"""The keys of `[carbon]`: which grid signals to account with and to decide on.

Invariant: secrets are never in the file itself; a key that needs one names a file that only its
owner can read.
"""

from typing import Literal

from pydantic import Field

from wattmesh.controller.settings.section import File, Section, Time
from wattmesh.integrations.carbon.reading.json_shape import JsonShape
from wattmesh.integrations.carbon.sources import JsonChoices, SourceSettings


class EiaSection(Section):
    """eia930: how an intensity is made of the fuel mix."""

    label: Literal["ending", "starting"] = "ending"
    """What an hour's label names; EIA documents its end, and some authorities report its start."""
    factors: dict[str, float] = Field(default_factory=dict, examples=[{"NG": 410.0}])
    """Own factors by fuel code, g/kWh, over the direct ones that docs/carbon-signals.md lists."""


class HttpJsonSection(Section):
    """http_json: how a service is asked, and where its answer keeps what."""

    url: str = Field(examples=["https://grid.example/intensity/{zone}?start={start}&end={end}"])
    """Address of what was; {zone}, {start}, {end} and {hours} (back from now) are filled in."""
    forecast_url: str = Field(
        default="", examples=["https://grid.example/forecast/{zone}?hours={hours}"]
    )
    """Address of the newest forecast, on the same host; "" for none."""
    rows: str = Field(default="", examples=["data.history"])
    """Path to the list, keys joined by dots; "" when the answer is the list."""
    forecast_rows: str = Field(default="", examples=["data.forecast"])
    """The same in the forecast's answer."""
    start: str = Field(default="start", examples=["start"])
    """Path in a row to when the interval begins: ISO 8601 with an offset, or seconds since 1970."""
    end: str = Field(default="", examples=["end"])
    """Path in a row to when it ends; "" when only `interval_s` says so."""
    value: str = Field(default="value", examples=["value"])
    """Path in a row to the number."""
    forecast_value: str = Field(default="value", examples=["forecast"])
    """The same in a row of the forecast."""
    estimated: str = Field(default="", examples=["isEstimated"])
    """Path in a row to a mark that is true where the value is estimated; "" when none is."""
    issued: str = Field(default="", examples=["generated_at"])
    """Path in the forecast's answer to when it was made; "" when it does not say."""
    unit: str = Field(examples=["g/kWh"])
    """Unit of the numbers: g/kWh, kg/MWh, t/GWh or lbs/MWh. Percentiles have no grams."""
    interval_s: float = Field(default=3600.0, ge=60, le=86400)
    """Length of every interval; they begin at multiples of it."""
    cadence_s: float | None = Field(default=None, ge=60, le=86400, examples=[900.0])
    """Seconds between two polls; default one interval."""
    lag_s: float = Field(default=0.0, ge=0, le=30 * 86400.0)
    """How long after its end an interval is usually told."""
    forecast_hours: float = Field(default=48.0, gt=0, le=240)
    """How far the forecast reaches."""
    longest_hours: float = Field(default=240.0, ge=1, le=10_000)
    """Longest span of one request."""
    token_header: str = "Authorization"
    """Header that carries the token of `token_file`."""
    token_scheme: str = "Bearer"
    """Word before the token; "" for none."""

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
        "neso", "electricity_maps", "watttime", "eia930", "static", "http_json", "csv"
    ] = Field(examples=["neso"])
    """`neso` (Great Britain, live, no key needed), `electricity_maps`, `watttime`, `eia930` (US,
    derived from the mix), `static` (a number of yours), `http_json` (any service that answers
    JSON) or `csv` (a recorded trace). `wattmesh carbon providers` says what each serves."""
    zone: str = Field(examples=["GB"])
    """Zone of the grid, as the provider names it."""
    key_file: File | None = Field(default=None, examples=["/etc/wattmesh/carbon.key"])
    """electricity_maps, eia930: file with the API key, readable by its owner only (mode 0600)."""
    username: str = Field(default="", examples=["operator"])
    """watttime: user name."""
    password_file: File | None = Field(default=None, examples=["/etc/wattmesh/watttime.password"])
    """watttime: file with the password, readable by its owner only (mode 0600)."""
    token_file: File | None = Field(default=None, examples=["/etc/wattmesh/grid.token"])
    """http_json: file with a token, readable by its owner only (mode 0600)."""
    kind: Literal["average", "marginal"] | None = Field(default=None, examples=["average"])
    """static, http_json: what the numbers are."""
    factor: Literal["direct", "lifecycle"] | None = Field(default=None, examples=["direct"])
    """electricity_maps: emission factors to ask for (default lifecycle); static, http_json: those
    that the numbers count."""
    gas: Literal["CO2", "CO2eq"] | None = Field(default=None, examples=["CO2"])
    """static, http_json: the gases that the numbers count."""
    granularity: Literal["hourly", "15_minutes", "5_minutes"] = "hourly"
    """electricity_maps: length of the intervals; the finer ones are not in every plan."""
    api_version: Literal["v4", "v3"] = "v4"
    """electricity_maps: version of the interface."""
    signal_type: Literal["co2_moer", "co2_aoer"] = "co2_moer"
    """watttime: `co2_moer` (marginal, every 5 minutes) or `co2_aoer` (average, hourly, no
    forecast). Its index is a percentile, which has no grams, and is not offered."""
    g_per_kwh: float | None = Field(default=None, gt=0, le=2000, examples=[250.0])
    """static: grams per kilowatt-hour."""
    eia930: EiaSection | None = None
    """eia930: how an intensity is made of the fuel mix."""
    http_json: HttpJsonSection | None = None
    """http_json: how the service is asked and read."""
    file: File | None = Field(default=None, examples=["/etc/wattmesh/trace.csv"])
    """csv: the recorded trace."""
    starts_at: Time | None = Field(default=None, examples=["2023-06-14T00:00:00Z"])
    """csv: the moment of the recording that plays first; default its beginning."""
    plays_at: Time | None = Field(default=None, examples=["2026-12-01T00:00:00Z"])
    """csv: the moment of today's clock at which it plays; default the daemon's start."""
    compress: float = Field(default=1.0, ge=1e-6, le=1e6)
    """csv: seconds of the recording that pass in one second."""
    base_url: str = Field(default="", examples=["https://api.carbonintensity.org.uk"])
    """neso, electricity_maps, watttime, eia930: another address of the same interface, e.g. a
    mirror inside the cluster."""
    stale_after_s: float | None = Field(default=None, gt=0, le=1e9, examples=[5400.0])
    """Seconds without an answer after which nothing carbon-motivated is done, whatever is known of
    the hours ahead; default three days, as long as a profile of stored history counts."""

    def source(self) -> SourceSettings:
        """Give what opening the source needs.

        Raises:
            InputInvalid: `http_json` has a unit or an address that cannot be.
        """
        eia930 = self.eia930 or EiaSection()
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
            json=self.http_json.choices() if self.http_json else None,
        )


class CarbonFallbackSection(CarbonSourceSection):
    """Another signal of the same kind that grams are booked with while the first is missing."""

    scale: float = Field(gt=0, le=10, examples=[1.08])
    """What its values are multiplied with to stand for the accounting signal's; 1 only if you know
    that both report the same."""


class CarbonSection(Section):
    """The grid signals: one to account with, one to decide on."""

    accounting: CarbonSourceSection
    """Signal that grams are booked with (average)."""
    decision: CarbonSourceSection | None = None
    """Signal that decisions look at; default the accounting one."""
    accounting_fallback: tuple[CarbonFallbackSection, ...] = Field(default=(), strict=False)
    """Signals that stand in, in this order, where the accounting one is later than it usually is;
    same kind, factor and gas. Their grams stand in lines of their own."""
    report: tuple[CarbonSourceSection, ...] = Field(default=(), strict=False)
    """Further signals (lifecycle, marginal) that reports show in lines of their own; never added
    to the others."""
