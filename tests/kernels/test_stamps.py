"""Stamps of slots, and the form that kernels which read by page tables are held against."""

import pytest
import torch

from evalsvc.kernels.stamps import check_pages, sound_slots, write_stamps

PAGE = 4


def stamped(lengths, table, tags):
    """Stamps of pages that hold sequences of these lengths."""
    stamps = torch.zeros(40, 2, dtype=torch.int32)
    for length, pages, own in zip(lengths, table.tolist(), tags.tolist(), strict=True):
        for position in range(length):
            slot = pages[position // PAGE] * PAGE + position % PAGE
            new = torch.tensor([[own[position // PAGE], position]], dtype=torch.int32)
            write_stamps(stamps, torch.tensor([slot]), new)
    return stamps


TABLE = torch.tensor([[3, 1, 0], [7, 9, 2], [5, 0, 0]], dtype=torch.int32)
TAGS = torch.tensor([[11, 12, 0], [13, 14, 15], [16, 0, 0]], dtype=torch.int32)
LENGTHS = torch.tensor([8, 9, 1])


def test_only_what_was_written_for_a_position_under_a_tag_is_sound():
    stamps = torch.zeros(8, 2, dtype=torch.int32)
    write_stamps(stamps, torch.tensor([5, 2]), torch.tensor([[7, 0], [7, 1]], dtype=torch.int32))
    slots = torch.tensor([5, 2, 5, 5, 3])
    wanted = torch.tensor([[7, 0], [7, 1], [8, 0], [7, 1], [7, 0]], dtype=torch.int32)
    assert sound_slots(stamps, slots, wanted).tolist() == [True, True, False, False, False]


def test_a_request_is_told_its_first_bad_position_and_how_many_are_sound():
    stamps = stamped(LENGTHS.tolist(), TABLE, TAGS)
    faults, sound = check_pages(stamps, TABLE, TAGS, LENGTHS, PAGE)
    assert faults.tolist() == [0, 0, 0] and sound.tolist() == [8, 9, 1]
    stamps[9 * PAGE + 1] = torch.tensor([14, 6])  # position 5 of the second one
    stamps[2 * PAGE] = torch.tensor([99, 8])
    faults, sound = check_pages(stamps, TABLE, TAGS, LENGTHS, PAGE)
    assert faults.tolist() == [0, 6, 0] and sound.tolist() == [8, 7, 1]
    assert faults.dtype == sound.dtype == torch.int32


@pytest.mark.parametrize(("first", "found"), [(0, [1, 7]), (1, [0, 7]), (3, [0, 5])])
def test_what_a_window_hides_is_neither_compared_nor_counted(first, found):
    stamps = stamped(LENGTHS.tolist(), TABLE, TAGS)
    stamps[3 * PAGE] = 0
    faults, sound = check_pages(stamps, TABLE[:1], TAGS[:1], LENGTHS[:1], PAGE, torch.tensor([first]))
    assert [int(faults), int(sound)] == found
