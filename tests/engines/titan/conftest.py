"""One small data set and its lab run for all tests of the titan engine."""

import pytest
from tests.engines.small import make_dataset
from tests.engines.titan.ranks import Place

from nugpt.data import TokenDataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("titan-data"))


@pytest.fixture
def place(tmp_path, dataset: TokenDataset) -> Place:  # type: ignore[no-untyped-def]
    return Place(tmp_path, dataset.path)
