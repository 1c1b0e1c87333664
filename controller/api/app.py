"""The table of routes, and the application made of it.

Invariant: the served calls and the published description come from this one table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wattmesh.controller.accounting.audit import Audit
from wattmesh.controller.accounting.budget import BudgetView
from wattmesh.controller.accounting.report.one_run import RunReport
from wattmesh.controller.accounting.report.views import MonthReport
from wattmesh.controller.api import tokens
from wattmesh.controller.api.attested import Endpoint, relayed
from wattmesh.controller.api.calls import Handler, endpoint, failure, success
from wattmesh.controller.api.handlers import (
    agents,
    caps,
    experts,
    jobs,
    operators,
    placement,
    reading,
    reports,
)
from wattmesh.controller.api.handlers.orders import order_endpoint, orders
from wattmesh.controller.api.handlers.status_board import status_endpoint
from wattmesh.controller.api.openapi import describe
from wattmesh.controller.api.request_context import Call, RequestContext
from wattmesh.controller.api.waits import Waits
from wattmesh.controller.api.workers import Workers
from wattmesh.controller.carbon_views import ForecastView
from wattmesh.controller.expert_costs.views import ExpertCostsView
from wattmesh.controller.journal.nodes.node_facts import Delivered
from wattmesh.controller.planner.view import PlanAnswer
from wattmesh.controller.views import (
    Done,
    PlacedExperts,
    PowerCap,
    Problem,
    StatusView,
    TokenMade,
    as_json,
)
from wattmesh.errors import RetryLater
from wattmesh.reconfig.wire.experts import ExpertTokenReport, PlacementWish
from wattmesh.reconfig.wire.messages import (
    SWITCH_ID_KEY,
    Finish,
    Heartbeat,
    HeartbeatAnswer,
    Orders,
    Progress,
    Register,
    Registered,
    Spent,
    Transition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """One call of the API.

    Attributes:
        who: "anyone" on the socket, the run's "owner" (or an operator), or an "operator".
        body, answer: the types of what is sent and what comes back; None: a plain object.
        query: names of the parameters, each with its meaning.
        light: answered from memory on the server's own thread.
        for_agents: also served to agents of other nodes. `relayed`: they may make it for others.
    """

    method: str
    path: str
    handler: Handler
    who: str = "anyone"
    body: type | None = None
    answer: type | None = None
    query: tuple[tuple[str, str], ...] = ()
    light: bool = False
    for_agents: bool = False
    relayed: bool = False

    @property
    def summary(self) -> str:
        """What the call is for: its handler's first line."""
        return (self.handler.__doc__ or "").strip().splitlines()[0]


LIMIT = ("limit", "most rows to give, 1 to 1000")
SINCE = ("since", "only from this time on, e.g. 2026-12-01T00:00:00Z")

CALLS = (
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/register",
        handler=jobs.register,
        who="owner",
        relayed=True,
        body=Register,
        answer=Registered,
    ),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/progress",
        handler=jobs.progress,
        who="owner",
        relayed=True,
        body=Progress,
    ),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/heartbeat",
        handler=jobs.heartbeat,
        who="owner",
        relayed=True,
        body=Heartbeat,
        answer=HeartbeatAnswer,
    ),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/transitions",
        handler=jobs.transition,
        who="owner",
        relayed=True,
        body=Transition,
    ),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/finish",
        handler=jobs.finish,
        who="owner",
        relayed=True,
        body=Finish,
    ),
    CallSpec(
        method="GET",
        path="/v1/runs/{run}/order",
        handler=orders,
        who="owner",
        relayed=True,
        answer=Orders,
        query=(
            ("wait", "seconds to wait for an order, 0 to 60"),
            (SWITCH_ID_KEY, "the id of the order that is known already; wait for another one"),
        ),
    ),
    CallSpec(
        method="GET",
        path="/v1/runs/{run}/spent",
        handler=reading.spent,
        relayed=True,
        answer=Spent,
    ),
    CallSpec(method="GET", path="/v1/runs/{run}/report", handler=reports.one_run, answer=RunReport),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/expert-tokens",
        handler=experts.tokens,
        who="owner",
        relayed=True,
        body=ExpertTokenReport,
    ),
    CallSpec(
        method="GET",
        path="/v1/runs/{run}/expert-costs",
        handler=experts.costs,
        relayed=True,
        answer=ExpertCostsView,
        query=(("details", "yes: also what is known of each GPU; default: no"),),
    ),
    CallSpec(
        method="GET",
        path="/v1/runs/{run}/placement",
        handler=placement.placed,
        answer=PlacedExperts,
    ),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/placement",
        handler=placement.place,
        who="owner",
        body=PlacementWish,
        answer=Done,
    ),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/switch",
        handler=operators.switch,
        who="owner",
        answer=Done,
    ),
    CallSpec(
        method="POST",
        path="/v1/runs/{run}/retire",
        handler=operators.retire,
        who="owner",
        answer=Done,
    ),
    CallSpec(method="POST", path="/v1/freeze", handler=operators.freeze, who="owner", answer=Done),
    CallSpec(method="POST", path="/v1/thaw", handler=operators.thaw, who="owner", answer=Done),
    CallSpec(method="POST", path="/v1/powercap", handler=caps.order, who="operator", answer=Done),
    CallSpec(method="POST", path="/v1/powercap/end", handler=caps.end, who="operator", answer=Done),
    CallSpec(
        method="POST",
        path="/v1/powercap/withdraw",
        handler=caps.withdraw,
        who="operator",
        answer=Done,
    ),
    CallSpec(method="GET", path="/v1/powercap", handler=caps.show, answer=PowerCap),
    CallSpec(
        method="POST",
        path="/v1/agents/{node}/readings",
        handler=agents.readings,
        who="the node's agent",
        for_agents=True,
        body=Delivered,
    ),
    CallSpec(
        method="GET",
        path="/v1/agents/{node}/desired",
        handler=agents.desired,
        who="the node's agent",
        for_agents=True,
        query=(
            ("wait", "seconds to wait for something new, 0 to 60"),
            ("serial", "the serial that is known already; wait for another one"),
        ),
    ),
    CallSpec(
        method="POST",
        path="/v1/agents/{node}/retire",
        handler=agents.retire,
        who="operator",
        answer=Done,
    ),
    CallSpec(
        method="POST",
        path="/v1/agents/{node}/token",
        handler=tokens.make,
        who="operator",
        answer=TokenMade,
    ),
    CallSpec(
        method="POST",
        path="/v1/agents/{node}/token/rotate",
        handler=tokens.rotate,
        who="operator",
        answer=TokenMade,
    ),
    CallSpec(
        method="POST",
        path="/v1/agents/{node}/token/revoke",
        handler=tokens.revoke,
        who="operator",
        answer=Done,
    ),
    CallSpec(method="GET", path="/v1/tokens", handler=tokens.tokens, who="operator"),
    CallSpec(method="GET", path="/v1/status", handler=reading.read_status, answer=StatusView),
    CallSpec(method="GET", path="/v1/runs", handler=reading.runs),
    CallSpec(method="GET", path="/v1/runs/{run}", handler=reading.run, query=(LIMIT,)),
    CallSpec(method="GET", path="/v1/runs/{run}/why", handler=reading.why, query=(LIMIT,)),
    CallSpec(method="GET", path="/v1/runs/{run}/plan", handler=reading.plan, answer=PlanAnswer),
    CallSpec(
        method="GET",
        path="/v1/decisions",
        handler=reading.decisions,
        query=(("run", "only of this run, by name or id"), LIMIT, SINCE),
    ),
    CallSpec(method="GET", path="/v1/budget", handler=reading.budget, answer=BudgetView),
    CallSpec(
        method="POST",
        path="/v1/budget/{name}/replan",
        handler=reports.replan,
        who="operator",
        answer=Done,
    ),
    CallSpec(
        method="GET",
        path="/v1/report",
        handler=reports.month,
        answer=MonthReport,
        query=(("month", "the month, e.g. 2026-10; default: the present one"),),
    ),
    CallSpec(
        method="POST",
        path="/v1/report/{month}/reopen",
        handler=reports.reopen,
        who="operator",
        answer=Done,
    ),
    CallSpec(method="GET", path="/v1/runs/{run}/audit", handler=reading.audit, answer=Audit),
    CallSpec(method="GET", path="/v1/events", handler=reading.events, query=(LIMIT, SINCE)),
    CallSpec(method="GET", path="/v1/carbon/now", handler=reading.carbon_now),
    CallSpec(
        method="GET",
        path="/v1/carbon/forecast",
        handler=reading.carbon_forecast,
        answer=ForecastView,
        query=(("signal", "the signal; default: the one that decisions rest on"),),
    ),
    CallSpec(
        method="GET",
        path="/v1/carbon/history",
        handler=reading.carbon_history,
        query=(("hours", "hours back; default: 24"),),
    ),
    CallSpec(method="GET", path="/healthz", handler=reading.healthz, light=True),
    CallSpec(method="GET", path="/readyz", handler=reading.readyz, light=True),
)


def build(context: RequestContext, workers: Workers) -> Starlette:
    """Make the application; `workers` run the handlers."""
    routes = [Route("/v1/openapi.json", _published, methods=["GET"])]
    waits = Waits(context)
    for call in CALLS:
        serve = serving(context, workers, call, waits)
        routes.append(
            Route(call.path, relayed(serve) if call.relayed else serve, methods=[call.method])
        )
    return Starlette(routes=routes, exception_handlers={HTTPException: no_such_page})


def serving(context: RequestContext, workers: Workers, call: CallSpec, waits: Waits) -> Endpoint:
    """Make the endpoint of a call; `waits` counts the waiting calls of its server."""
    if call.handler is orders:
        return order_endpoint(context, workers, waits)
    if call.handler is jobs.heartbeat:
        return jobs.heartbeat_endpoint(context, workers)
    if call.handler is reading.read_status:
        return status_endpoint(context, workers)
    if call.handler is agents.desired:
        return agents.desired_endpoint(context, waits)
    return _light(context, call.handler) if call.light else endpoint(context, workers, call.handler)


async def _published(request: Request) -> Response:
    return JSONResponse(describe(CALLS))


def _light(context: RequestContext, handler: Handler) -> Callable[[Request], Any]:
    """Make an endpoint that neither blocks nor needs a worker thread."""

    async def answer(request: Request) -> Response:
        call = Call(peer=request.state.peer, path={}, query={}, body={})
        try:
            return success(handler(context, call))
        except RetryLater as error:
            return failure(error, request.url.path)

    return answer


async def no_such_page(request: Request, error: Exception) -> Response:
    """Answer a wrong address or method like every other mistake."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    known = sorted(call.path for call in CALLS if _like(call.path, request.url.path))
    hint = f"did you mean {known[0]}?" if known else "/v1/openapi.json lists every call"
    sentence = f"There is no {request.method} {request.url.path}; {hint}"
    return JSONResponse(
        as_json(Problem(error=sentence, kind="not_found" if status == 404 else "invalid")),
        status_code=status,
    )


def _like(known: str, asked: str) -> bool:
    """Whether two paths have the same first two parts and the same depth."""
    ours, theirs = known.split("/"), asked.split("/")
    return len(ours) == len(theirs) and ours[:3] == theirs[:3]
