"""What evidence was made on: only what both sides know can differ."""

import pytest

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.fingerprint import Fingerprint

HERE = Fingerprint(gpu_models="8 x H100", torch="2.9.1", code_digest="ab" * 32)


def test_a_part_that_one_side_does_not_know_is_no_difference() -> None:
    """Unknown is not another value; a known other value is named with both."""
    assert HERE.differences(Fingerprint()) == ()
    assert HERE.differences(Fingerprint(torch="2.9.1", driver="580")) == ()
    (told,) = HERE.differences(Fingerprint(torch="2.10.0", gpu_models="8 x H100"))
    assert told == "torch 2.9.1, now 2.10.0"
    (code,) = HERE.differences(Fingerprint(code_digest="cd" * 32))
    assert code == "the job's code abababa…, now cdcdcdc…"


def test_it_reads_back_and_refuses_what_it_does_not_know() -> None:
    """A key of no such part, or a value that is no text, is a mistake with its name."""
    assert Fingerprint.from_dict(HERE.to_dict()) == HERE
    assert HERE.with_known(Fingerprint(driver="580")).driver == "580"
    with pytest.raises(InputInvalid, match="cuda"):
        Fingerprint.from_dict({"cuda": "13"})
    with pytest.raises(InputInvalid, match="torch must be a text"):
        Fingerprint.from_dict({"torch": 2})
