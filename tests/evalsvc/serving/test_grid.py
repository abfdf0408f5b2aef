"""What a grid asks."""

import pytest

from evalsvc.errors import ConfigError
from evalsvc.serving.grid import MAXIMUM, Grid, numbers, prompts, settings_hash


def test_numbers_are_read():
    assert numbers("1, 4,max", "--concurrency", maximum=True) == (1, 4, MAXIMUM)
    assert numbers("32,128", "--prompt-tokens") == (32, 128)


@pytest.mark.parametrize("text", ["", "0", "1,,2", "1.5", "-3", "max", "1,1", "four"])
def test_what_is_no_list_of_numbers_is_refused_in_a_sentence(text):
    with pytest.raises(ConfigError, match="--prompt-tokens"):
        numbers(text, "--prompt-tokens")


def test_each_cell_stands_once_and_a_plan_that_holds_nothing_has_no_maximum():
    grid = Grid(prompt_tokens=(8, 16), concurrency=(1, 4, MAXIMUM), most=10)
    assert grid.cells({8: 40, 16: 4}) == [(8, 1), (8, 4), (8, 10), (16, 1), (16, 4)]
    assert grid.cells({8: 0, 16: 0}) == [(8, 1), (8, 4), (16, 1), (16, 4)]


def test_prompts_share_no_page_and_come_again_from_their_seed():
    made = prompts(40, 50, 1000, (0, 40, 4, 1))
    pages = [tuple(p[i : i + 16]) for p in made for i in (0, 16)]
    assert len(set(pages)) == 100 and all(len(p) == 40 and max(p) < 1000 for p in made)
    assert made == prompts(40, 50, 1000, (0, 40, 4, 1)) != prompts(40, 50, 1000, (0, 40, 4, 2))


def test_settings_differ_in_everything_that_changes_a_figure():
    grid = Grid()
    hashes = {
        settings_hash(g.settings(memory))
        for g in (grid, Grid(new_tokens=8), Grid(rounds=3), Grid(seed=1), Grid(most=4))
        for memory in (1, 2)
    }
    assert len(hashes) == 10
    assert settings_hash(Grid(repeats=9).settings(1)) == settings_hash(grid.settings(1)), "more repeats go on"
