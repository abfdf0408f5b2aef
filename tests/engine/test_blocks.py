"""Blocks of rows: all rows once, few enough to be small, and few of them where each costs launches."""

import torch

from evalsvc.engine.blocks import row_blocks


def test_blocks_cover_all_rows_once_in_whole_multiples():
    found = list(row_blocks((1000, 300), 128))
    assert [row for some in found for row in range(1000)[some]] == list(range(1000))
    assert {len(range(1000)[some]) % 128 for some in found[:-1]} == {0} and len(found) == 8


def test_a_device_that_is_no_processor_takes_a_matrix_in_few_blocks():
    """An 8B model is 120,000 blocks of a processor's, of a dozen launches and a wait each."""
    assert len(list(row_blocks((14336, 4096)))) == 896
    with torch.device("meta"):
        assert len(list(row_blocks((14336, 4096)))) == 4
        assert len(list(row_blocks((16, 2**26)))) == 16
