"""`--model_args` whose values hold commas and `=`."""

import json

import pytest

from evalsvc.errors import ConfigError
from evalsvc.model_args import check_name, prepared, split_options

PLAN = "w=bf16,kv=bf16 > w=int4:g32:asym,kv=fp8"
OPTIONS = ("pretrained", "plan", "through", "kv_tokens", "threads", "max_length", "seed", "add_bos_token")


@pytest.mark.parametrize(
    "text, options",
    [
        (f"pretrained=some/dir,plan={PLAN}", {"pretrained": "some/dir", "plan": PLAN}),
        (
            f"plan={PLAN},pretrained=a=b/c.gguf,kv_tokens=99",
            {"plan": PLAN, "pretrained": "a=b/c.gguf", "kv_tokens": 99},
        ),
        (f'pretrained=m,plan="{PLAN}",through=decode', {"pretrained": "m", "plan": PLAN, "through": "decode"}),
        ("pretrained='7',seed=-1,add_bos_token=True", {"pretrained": "7", "seed": -1, "add_bos_token": True}),
        ("plan=w=fp8,max_length=none", {"plan": "w=fp8", "max_length": None}),
        ("pretrained=my_seed=3,threads=1,", {"pretrained": "my_seed=3", "threads": 1}),
        (" pretrained=m , threads = 2 ", {"pretrained": "m", "threads": 2}),
        ("", {}),
    ],
)
def test_options_are_split_where_an_option_begins(text, options):
    assert split_options(text, OPTIONS) == options


@pytest.mark.parametrize(
    "text, message",
    [
        ("pretrained=m,batch=3", "no option 'batch'"),
        ("pretrainde=m,threads=1", "did you mean pretrained"),
        ("pretrained=m,threads=1,threads=2", "threads twice"),
        ("some/dir", "no option 'some/dir'"),
    ],
)
def test_options_that_do_not_exist_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        split_options(text, OPTIONS)


def test_a_plan_on_the_command_line_stays_whole():
    argv = ["run", "--model", "evalsvc", "--model_args", f"pretrained=m,plan={PLAN}", "threads=1", "--tasks", "x"]
    made = prepared(argv, "evalsvc", OPTIONS)
    assert json.loads(made[4]) == {"pretrained": "m", "plan": PLAN, "threads": 1}
    assert made[:4] == argv[:4] and made[5:] == ["--tasks", "x", "--device", "auto"]
    joined = prepared(["-M", "evalsvc", f"--model_args=plan={PLAN}", "left", "--device=cpu"], "evalsvc", OPTIONS)
    assert json.loads(joined[3]) == {"plan": PLAN} and joined[4:] == ["left", "--device=cpu"]
    short = prepared(["-M", "evalsvc", "-a", f"plan={PLAN}", "-C", "c.yaml"], "evalsvc", OPTIONS)
    assert json.loads(short[3]) == {"plan": PLAN} and short[4:] == ["-C", "c.yaml"]


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--model", "hf", "--model_args", "pretrained=m,dtype=auto", "--tasks", "x"],
        ["run", "--model=evalsvc", "-a", json.dumps({"pretrained": "m", "plan": PLAN}), "--device", "cpu"],
        ["--model", "evalsvc", "--config", "c.yaml"],
        ["ls", "tasks"],
    ],
)
def test_other_command_lines_are_left_as_they_are(argv):
    assert prepared(argv, "evalsvc", OPTIONS) == argv


def test_halves_of_a_plan_are_no_options_and_the_remedy_is_named():
    with pytest.raises(ConfigError, match="as a mapping"):
        check_name("kv", OPTIONS)
