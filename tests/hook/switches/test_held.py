"""Who holds what outlived a teardown is named, whichever way it is held; looking holds nothing."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from wattmesh.reconfig.state.held import holder

KEPT: list[Any] = []
DEFINED = Path(__file__).read_text().splitlines().index("KEPT: list[Any] = []") + 1


def model() -> nn.Module:
    """A parameter two modules deep."""
    return nn.Sequential(nn.Sequential(nn.Linear(2, 2)))


def by_a_local(look: Callable[[nn.Parameter], str]) -> str:
    """A running function's."""
    old_model = model()
    return look(next(old_model.parameters()))


def by_an_attribute(look: Callable[[nn.Parameter], str]) -> str:
    """Of an object in a local."""
    trainer = SimpleNamespace(kept={"model": [model()]})
    return look(next(trainer.kept["model"][0].parameters()))


def by_a_scheduler(look: Callable[[nn.Parameter], str]) -> str:
    """The optimizer's parameters through the schedule."""
    weight = next(model().parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([weight], lr=0.1))
    del weight
    return look(schedule.optimizer.param_groups[0]["params"][0])


def by_a_global(look: Callable[[nn.Parameter], str]) -> str:
    """A module's."""
    KEPT.append(model())
    try:
        return look(next(KEPT[0].parameters()))
    finally:
        KEPT.clear()


def by_a_closure(look: Callable[[nn.Parameter], str]) -> str:
    """A function in a global that closes over it."""

    def make() -> Callable[[], nn.Module]:
        inner = model()
        return lambda: inner

    KEPT.append(make())
    try:
        return look(next(KEPT[0]().parameters()))
    finally:
        KEPT.clear()


def by_a_generator(look: Callable[[nn.Parameter], str]) -> str:
    """One that waits."""

    def steps() -> Iterator[nn.Parameter]:
        stepped = model()
        yield from stepped.parameters()

    waiting = steps()
    return look(next(waiting))


HOLDERS: dict[Callable[[Callable[[Any], str]], str], str] = {
    by_a_local: "`old_model` in by_a_local",
    by_an_attribute: "`trainer.kept` in by_an_attribute",
    by_a_scheduler: "`schedule.optimizer` in by_a_scheduler",
    by_a_global: f"`KEPT` of module {__name__} ({__file__}:{DEFINED})",
    by_a_closure: "`inner` closed over by by_a_closure.<locals>.make.<locals>.<lambda>",
    by_a_generator: "`waiting` in by_a_generator",
}


@pytest.fixture(autouse=True)
def aside() -> Iterator[None]:
    """Set aside again what a search has taken back: all that the tests of a worker import."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave aside what was set aside before the test: each level of a search walks all of it."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)


@pytest.mark.parametrize("how", [each for each in HOLDERS if each is not by_a_global])
@pytest.mark.usefixtures("unseen")
def test_the_variable_is_named(how: Callable[[Callable[[Any], str]], str]) -> None:
    """By name, function and place."""
    check_named(how, frozen=False)


def test_what_was_set_aside_from_collections_is_looked_at_too() -> None:
    """A global of a module that was, and what it holds; nothing else knows of it."""
    check_named(by_a_global, frozen=True)


def check_named(how: Callable[[Callable[[Any], str]], str], *, frozen: bool) -> None:
    """See that a holder is named, and that the search holds nothing."""
    kept: list[weakref.ref[nn.Parameter]] = []

    def look(weight: nn.Parameter) -> str:
        ref = weakref.ref(weight)
        kept.append(ref)
        del weight
        if frozen:
            gc.freeze()
        return holder(ref, longest_s=60.0)

    said = how(look)
    assert said.startswith(HOLDERS[how]), said
    assert __file__ in said
    gc.unfreeze() if frozen else None
    gc.collect()
    assert kept[0]() is None, gc.get_referrers(kept[0]())


@pytest.mark.usefixtures("unseen")
def test_a_global_that_a_function_sets_is_named_where_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last place counts; a local of the same name elsewhere does not."""
    path = tmp_path / "user_script.py"
    path.write_text(
        "MODEL = None\n\ndef keep(model):\n    global MODEL\n    MODEL = model\n\n"
        "def other():\n    MODEL = 3\n    return MODEL\n"
    )
    spec = spec_from_file_location("user_script", path)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "user_script", script)
    spec.loader.exec_module(script)
    weight = next(model().parameters())
    script.keep([weight])
    ref = weakref.ref(weight)
    del weight
    assert holder(ref, longest_s=60.0) == f"`MODEL` of module user_script ({path}:5)"


@pytest.mark.usefixtures("unseen")
def test_what_no_variable_holds_is_not_guessed() -> None:
    """Nor what is gone; and a search that has no time says nothing."""
    alone = [torch.zeros(1)]
    found, unsought = holder(weakref.ref(alone[0])), holder(weakref.ref(alone[0]), longest_s=0.0)
    gone = holder(weakref.ref(torch.zeros(1)))
    assert "`alone`" in found
    assert (unsought, gone) == ("", "")
