"""How a launch begins: global rank 0 chooses the checkpoint and the layout for all ranks.

Invariant: training starts from the newest checkpoint whose every byte is as it was written. A
damaged one is logged, skipped and left on disk for a human.
"""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattmesh.errors import CallHuman, CheckpointDamaged, InputInvalid
from wattmesh.reconfig.checkpoint import foreign
from wattmesh.reconfig.checkpoint.checkpoint import read_whole
from wattmesh.reconfig.checkpoint.header import Header
from wattmesh.reconfig.launch.attempt import LaunchIdentity
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.launch.generation import Generation, Purpose, SwitchNote
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import read_placement

log = logging.getLogger(__name__)

RESTART_TRIES = 1
"""How many launches may try the layout of a restart switch before the run goes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """What the caller of `attach` asked for; used where no checkpoint says otherwise.

    `launched`: how many ranks the launcher started. `own_save`: whether the job's own checkpointer
    writes, which stores the rows of experts as they lie.
    """

    layout: Layout
    ranks: tuple[int, ...] | None
    launched: int
    seekable: bool = True
    own_save: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstGeneration:
    """The first generation of a launch, and the switch during which an earlier launch died."""

    generation: Generation
    died_in: dict[str, Any] | None = None


def first_generation(
    folder: RunFolder, identity: LaunchIdentity, wanted: AttachRequest
) -> FirstGeneration:
    """Decide how this launch begins; the caller holds the folder's lock.

    Raises:
        InputInvalid: no layout fits the ranks that were launched.
        CallHuman: every checkpoint is damaged, or the newest whole one belongs to another run.
    """
    folder.drop_stagings()
    found = newest_whole(folder)
    if found is None:
        ranks = wanted.ranks or tuple(range(wanted.layout.world_size))
        _check_ranks_fit(wanted.layout, ranks, wanted.launched)
        folder.next_file.unlink(missing_ok=True)
        return FirstGeneration(
            generation=_generation(identity, wanted.layout, ranks),
            died_in=_unfinished_switch(folder),
        )
    path, header = found
    if header.run != identity.run:
        raise CallHuman(
            f"{path} belongs to run {header.run}, this folder is run {identity.run}'s: "
            "checkpoints of two runs were mixed; move one of them away."
        )
    if wanted.own_save and header.placement:
        # The checkpoint has experts by number, so this is the same function.
        log.warning(
            "the experts lie in the order of their numbers again: the job's own checkpointer "
            "stores them as they lie."
        )
        header = replace(header, placement=())
    restart = _restart(folder, identity, path, header, wanted.launched)
    if restart is not None:
        return FirstGeneration(generation=restart)
    layout, ranks = layout_of(header, wanted)
    generation = _generation(identity, layout, ranks, path, header)
    return FirstGeneration(generation=generation, died_in=_unfinished_switch(folder))


def newest_whole(folder: RunFolder) -> tuple[Path, Header] | None:
    """Find the newest undamaged checkpoint; None if there is no checkpoint at all.

    Raises:
        CallHuman: there are checkpoints, and all are damaged.
    """
    damage = ""
    for path in folder.checkpoints():
        try:
            # A checkpoint of the job's own checkpointer may not have been hashed yet.
            foreign.prove(path, gentle=False)
            header = read_whole(path)
        except CheckpointDamaged as error:
            damage = damage or str(error)
            log.error("%s It is passed over; the one before is tried.", error)
            continue
        if damage:
            log.error("training resumes from %s, because newer ones are damaged.", path.name)
        return path, header
    if damage:
        raise CallHuman(
            f"every checkpoint in {folder.path} is damaged ({damage}) Restore one from a backup, "
            "or move them away to begin anew."
        )
    return None


def _restart(
    folder: RunFolder, identity: LaunchIdentity, path: Path, header: Header, launched: int
) -> Generation | None:
    """Return the generation that a restart switch asked for; None if there is no valid request."""
    asked = read_json(folder.next_file)
    if asked is None:
        return None
    try:
        note = SwitchNote.from_json(asked["switch"])
        layout = Layout.from_dict(asked["layout"])
        ranks = tuple(int(each) for each in asked["ranks"])
        tries, probe, named = int(asked["tries"]), float(asked["probe"]), str(asked["checkpoint"])
        placement = read_placement(asked["placement"]) if "placement" in asked else header.placement
        resized, left_s = bool(asked.get("resized_from")), float(asked.get("left_s", 0.0))
        _check_ranks_fit(layout, ranks, launched)
    except (KeyError, TypeError, ValueError, InputInvalid) as error:
        log.error("%s cannot be used (%s); the run stays in its layout.", folder.next_file, error)
        folder.next_file.unlink(missing_ok=True)
        return None
    if named != path.name or tries >= RESTART_TRIES:
        log.error("the restart into %s did not come up; the run goes back.", layout)
        folder.next_file.unlink(missing_ok=True)
        return None
    if resized and launched != len(ranks):
        log.error(
            "%d ranks were launched, not the %d of %s; the run goes back.",
            launched,
            len(ranks),
            layout,
        )
        folder.next_file.unlink(missing_ok=True)
        return None
    if resized:
        note = replace(note, began_s=time.monotonic() - left_s, boot=boot_id())
    write_json(folder.next_file, {**asked, "tries": tries + 1})
    base = _generation(identity, layout, ranks, path, header)
    return replace(base, switch=note, probe=probe, placement=placement)


def layout_of(header: Header, wanted: AttachRequest) -> tuple[Layout, tuple[int, ...]]:
    """Return the checkpoint's own layout if enough ranks were launched, else the wanted one.

    Raises:
        InputInvalid: the wanted layout does not fit the launched ranks, or changes the data
            parallel degree of a loader that cannot seek.
    """
    layout, ranks = Layout.from_dict(header.layout), header.ranks
    if max(ranks) < wanted.launched:
        return layout, ranks
    log.warning(
        "the checkpoint was trained as %s on ranks %s, but %d ranks were launched: training goes "
        "on as %s.",
        layout,
        list(ranks),
        wanted.launched,
        wanted.layout,
    )
    if not wanted.seekable and wanted.layout.data_parallel != layout.data_parallel:
        raise InputInvalid(
            f"the checkpoint was trained as {layout}, the launch asks for {wanted.layout}: the "
            "loader cannot seek by global sample, so the data parallel degree must stay "
            f"{layout.data_parallel}; launch with such a layout."
        )
    ranks = wanted.ranks or tuple(range(wanted.layout.world_size))
    _check_ranks_fit(wanted.layout, ranks, wanted.launched)
    return wanted.layout, ranks


def _check_ranks_fit(layout: Layout, ranks: tuple[int, ...], launched: int) -> None:
    if len(ranks) != layout.world_size:
        raise InputInvalid(
            f"layout {layout} needs {layout.world_size} ranks, {len(ranks)} are named: {ranks}"
        )
    if max(ranks) >= launched:
        raise InputInvalid(
            f"layout {layout} needs rank {max(ranks)}, but the launcher started {launched} ranks; "
            f"launch at least {max(ranks) + 1} or choose a smaller layout."
        )


def _generation(
    identity: LaunchIdentity,
    layout: Layout,
    ranks: tuple[int, ...],
    path: Path | None = None,
    header: Header | None = None,
) -> Generation:
    return Generation(
        number=1,
        purpose=Purpose.START,
        run=identity.run,
        incarnation=identity.incarnation,
        attempt=identity.attempt,
        layout=layout,
        ranks=ranks,
        checkpoint=path.name if path else "",
        step=header.step if header else 0,
        samples=header.samples if header else 0,
        tokens=header.tokens if header else 0,
        digest=header.digest if header else "",
        placement=header.placement if header else (),
    )


def _unfinished_switch(folder: RunFolder) -> dict[str, Any] | None:
    """Return the record of a switch that an earlier launch did not finish, if there is one."""
    return read_json(folder.switch_file)
