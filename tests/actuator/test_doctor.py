"""`wattmesh doctor` on a node: the actuator's own word, or why there is none."""

from pathlib import Path

from benchmarks.safety.node import Node
from wattmesh.controller.cli.doctor.actuator_checks import actuator, judged
from wattmesh.controller.cli.doctor.findings import CheckStatus
from wattmesh.controller.settings.model import ActuatorSection
from wattmesh.telemetry.desired import Applied, GpuControl


def test_a_node_without_an_actuator_has_no_line(tmp_path: Path) -> None:
    """Most machines have none, and need none."""
    assert not list(actuator(ActuatorSection(socket=tmp_path / "none")))


def test_one_that_should_be_there_and_is_not_is_a_problem(tmp_path: Path) -> None:
    """Its mode says that it is wanted."""
    found = list(actuator(ActuatorSection(socket=tmp_path / "none", mode="enforce")))
    assert [each.verdict for each in found] == [CheckStatus.PROBLEM]
    assert "no actuator answers" in found[0].text


def test_one_that_works_says_what_it_may_and_does() -> None:
    """On the real socket."""
    with Node() as node:
        node.job()
        node.start()
        section = ActuatorSection(socket=node.folder / "actuator.sock", mode="enforce")
        node.until(lambda: next(actuator(section)).verdict is CheckStatus.OK)
        told = next(actuator(section))
        assert told.text == "mode enforce, 2 of 2 GPUs settable, 0 set now"
        node.client.restore()
        assert "restore-all" in next(actuator(section)).text


def test_trouble_of_one_gpu_is_told() -> None:
    """The sentence of the actuator itself."""
    gpu = GpuControl(gpu_uuid="GPU-0", trouble="GPU-0 does not answer: look at nvidia-smi")
    found = judged(Applied(mode="enforce", epoch=1, gpus=(gpu,)))
    assert found.verdict is CheckStatus.PROBLEM
    assert "does not answer" in found.text
    assert judged(Applied(mode="dry-run", epoch=0)).verdict is CheckStatus.PROBLEM
