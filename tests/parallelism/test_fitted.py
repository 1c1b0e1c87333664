"""The file of the fitted model: read as it was written, or refused; nothing in it is executed."""

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pytest

from wattmesh.controller.cost_model import fitted
from wattmesh.errors import InputInvalid
from wattmesh.policies.parallelism.parameters import SIZE, pack
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.residuals.known_errors import observe

SHIPPED = files("wattmesh.controller.cost_model").joinpath(fitted.NAME).read_bytes()


def written(folder: Path, content: bytes) -> Path:
    """Write a file."""
    path = folder / "fitted.npz"
    path.write_bytes(content)
    return path


def refused(path: Path) -> str:
    """Give the sentence for a file that is no model."""
    with pytest.raises(InputInvalid, match="no cost model of this version") as told:
        fitted.read(path)
    return str(told.value)


def equal(one: CostModel, other: CostModel) -> bool:
    """Tell whether two models predict by the same numbers."""
    return (
        bool((pack(one.parameters) == pack(other.parameters)).all())
        and one.shares == other.shares
        and all(
            known.tags == other.known_errors[kind].tags
            and (known.errors == other.known_errors[kind].errors).all()
            and (known.noise2 == other.known_errors[kind].noise2).all()
            and (known.habits.logarithms == other.known_errors[kind].habits.logarithms).all()
            for kind, known in one.known_errors.items()
        )
    )


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The shipped one, and one that knows no errors of models with experts."""
    model = fitted.read(written(tmp_path, SHIPPED))
    fitted.save(model, tmp_path / "again.npz")
    again = fitted.read(tmp_path / "again.npz")
    np.testing.assert_allclose(pack(again.parameters), pack(model.parameters), rtol=1e-12)
    nothing = observe([], np.array([]), model.known_errors[True].habits)
    sparse = replace(again, known_errors={**again.known_errors, True: nothing})
    fitted.save(sparse, tmp_path / "sparse.npz")
    found = fitted.read(tmp_path / "sparse.npz")
    assert found.known_errors[True].tags == ()
    assert found.known_errors[False].tags == model.known_errors[False].tags


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 21, 22, 100, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    """Nothing, a part of the first header, half, all but the end."""
    length = int(kept * len(SHIPPED)) if isinstance(kept, float) else kept
    refused(written(tmp_path, SHIPPED[:length]))


def test_a_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Each of the last 1500 bytes (the directory) and 300 others, by another value each."""
    draw, original = random.Random(11), fitted.read(written(tmp_path, SHIPPED))
    directory = list(range(len(SHIPPED) - 1500, len(SHIPPED)))
    places = directory[::5] + draw.sample(range(len(SHIPPED) - 1500), 100)
    harmless = 0
    for place in places:
        spoilt = bytearray(SHIPPED)
        spoilt[place] ^= 1 << draw.randrange(8)
        try:
            found = fitted.read(written(tmp_path, bytes(spoilt)))
        except InputInvalid:
            continue
        assert equal(found, original), f"byte {place}"
        harmless += 1
    assert harmless < len(places) / 2


def test_a_changed_number_is_caught(tmp_path: Path) -> None:
    """Sabotaged twin: a model that differs in one number is not the same."""
    original = fitted.read(written(tmp_path, SHIPPED))
    known = original.known_errors[False]
    errors = known.errors.copy()
    errors[3] += 1e-9
    other = {**original.known_errors, False: replace(known, errors=errors)}
    assert equal(original, original)
    assert not equal(original, replace(original, known_errors=other))


def arrays() -> dict[str, Any]:
    """Read the shipped arrays."""
    with np.load(BytesIO(SHIPPED)) as found:
        return {name: found[name] for name in found.files}


def _drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.pop(name)


def _put(name: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found[name] = make(found[name])

    return change


def _with(value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        spoilt = array.copy()
        spoilt.flat[0] = value
        return spoilt

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_drop("parameters"), "parameters"),
        (_drop("dense.place"), "dense.place"),
        (_put("parameters", lambda each: each[:-1]), f"parameters is float64 of shape ({SIZE - 1}"),
        (_put("parameters", lambda each: each[None]), "parameters is float64 of shape (1, "),
        (_put("parameters", lambda each: each.astype("f4")), "parameters is float32"),
        (_put("parameters", lambda each: each.astype("U8")), "parameters is <U8"),
        (_put("parameters", _with(np.nan)), "values that are no numbers"),
        (_put("dense.habits", lambda each: each[1:]), "dense.habits is float64 of shape (32,)"),
        (_put("dense.habits", _with(np.inf)), "values that are no numbers"),
        (_put("dense.errors", lambda each: each[1:]), "dense.errors is float64 of shape"),
        (_put("dense.errors", _with(np.nan)), "values that are no numbers"),
        (_put("experts.noise2", lambda each: each[1:]), "experts.noise2 is float64 of shape"),
        (_put("experts.noise2", _with(-1.0)), "values that are no variances"),
        (_put("experts.noise2", _with(0.0)), "values that are no variances"),
        (_put("experts.place", lambda each: each[:, 1:]), "experts.place is float64 of shape"),
        (_put("experts.gpu", lambda each: each[1:]), ""),
        (_put("experts.gpu", lambda each: each.astype(object)), "Object arrays cannot be loaded"),
        (_put("experts.gpu", lambda each: np.arange(len(each))), "experts.gpu is no list of texts"),
        (_put("dense.release_years", _with(np.inf)), "values that are no numbers"),
    ],
)
def test_arrays_of_another_kind_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    """Missing, of other shapes, of other types, no numbers."""
    found = arrays()
    change(found)
    np.savez_compressed(tmp_path / "fitted.npz", **found)
    assert why in refused(tmp_path / "fitted.npz")


class Dangerous:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        """Keep where."""
        self.mark = mark

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Ask to be rebuilt by making a file."""
        return Path.touch, (self.mark,)


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    """As an array of objects in the archive, alone as an array, and plain."""
    mark = tmp_path / "executed"
    dangerous = np.array([Dangerous(mark)], dtype=object)
    np.savez(tmp_path / "member.npz", **arrays() | {"parameters": dangerous})
    np.save(tmp_path / "array.npy", dangerous, allow_pickle=True)
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Dangerous(mark)))
    for name in ("member.npz", "array.npy", "plain.npz"):
        refused(tmp_path / name)
    assert not mark.exists()
    np.load(tmp_path / "array.npy", allow_pickle=True)
    assert mark.exists(), "the twin: it does leave its mark where pickles are allowed"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, nothing, and an array that is no archive."""
    refused(tmp_path)
    refused(tmp_path / "gone.npz")
    np.save(tmp_path / "array.npy", np.zeros(SIZE))
    refused(tmp_path / "array.npy")
