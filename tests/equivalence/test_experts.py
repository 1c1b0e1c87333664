"""V6 on the example's experts: one rank, and four that share them in three dimensions."""

from pathlib import Path

from tests.equivalence import routes
from tests.hook.harness import Zygote
from wattmesh.reconfig.equivalence.checks.masks import same_routes


def test_tokens_go_to_the_same_experts_wherever_these_are(zygote: Zygote, tmp_path: Path) -> None:
    """Over cp, tp and ep every token chooses as on one rank; a leaning router is seen."""
    found = []
    for ranks, layout in ((1, ""), (4, "cp=2,tp=2,ep=4")):
        out = tmp_path / f"{ranks}"
        out.mkdir()
        environment = {"OUT": str(out), "LAYOUT": layout}
        number = zygote.start(ranks, environment, out, "tests.equivalence.routes:main")
        status = zygote.wait(number)
        assert status == 0, [path.read_text() for path in out.glob("*.log")]
        found.append(routes.merged(out))
    (alone, leaning), (shared, _) = found
    verdict = same_routes(shared, alone)
    assert verdict.ok, verdict.sentence
    assert {name: each.shape for name, each in alone.items()} == {
        f"layers.{number}.feed_forward": (8 * 16, 2) for number in range(4)
    }
    assert not same_routes(leaning, alone).ok
