"""Expert-tokens in, expert costs out: what live runs report, and the scores that they are told.

Invariant: a report is believed only from the owner's newest launch, and only of GPUs that its ranks
use; a reading call changes nothing.
"""

import logging
from dataclasses import replace
from typing import Any

from wattmesh.controller.api.handlers.jobs import known_run, read_message
from wattmesh.controller.api.request_context import Call, RequestContext
from wattmesh.controller.api.speaking import speaking
from wattmesh.controller.expert_costs.views import ExpertCostsView
from wattmesh.controller.journal.runs.admission import speaking as speaker_of
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.wire.experts import ExpertTokenReport

log = logging.getLogger(__name__)


def tokens(context: RequestContext, call: Call) -> dict[str, Any]:
    """Take how many expert-tokens each GPU of a run has computed; a repeat changes nothing."""
    message = read_message(ExpertTokenReport, call)
    context.act()
    with known_run(context, message.run), speaking(context, call):
        row = context.journal.runs.find(message.run, context.now)
        speaker_of(row, message, call.peer.uid)
        assert row is not None  # checked by it
    used = row.gpus_used
    known = replace(
        message,
        tokens={gpu: each for gpu, each in message.tokens.items() if gpu in used},
        busy_s={gpu: each for gpu, each in message.busy_s.items() if gpu in used},
    )
    context.token_reports.add(known, context.now.timestamp())
    return {"ok": True, "gpus": len(known.tokens)}


def costs(context: RequestContext, call: Call) -> ExpertCostsView:
    """Give what a run's GPUs cost its experts, as scores for its routers."""
    row = context.run(call.path["run"], call.peer)
    wanted = call.query.get("details", "no")
    if wanted not in ("yes", "no"):
        raise InputInvalid(f"details={wanted!r} is neither yes nor no")
    return context.expert_costs(row, details=wanted == "yes")
