"""Every method keeps every point of the contract."""

import pytest

from nocl.checks import LEARNER_CHECKS
from nocl.methods import METHODS


@pytest.mark.parametrize("check", LEARNER_CHECKS)
@pytest.mark.parametrize("method", METHODS)
def test_method_keeps_the_contract(method: str, check: str) -> None:
    LEARNER_CHECKS[check](METHODS[method], {})
