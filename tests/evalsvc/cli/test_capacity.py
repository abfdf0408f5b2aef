"""`evalsvc capacity`: tables, JSON, and what is typed wrongly."""

import json
import subprocess
import sys

import pytest

from evalsvc.capacity.model import SHIPPED


def test_both_stages_of_a_plan_stand_apart(evalsvc, evalsvc_json):
    plan = "w=int4:g32 > w=int4:g32,kv=fp8:uncalibrated"
    asked = ("capacity", "--config", "kimi-k2", "--gpus", 8, "--gpu-memory", 141, "--packs", "experts", "--plan", plan)
    code, document = evalsvc_json(*asked)
    prefill, decode = document["stages"]
    assert code == 0 and document["schema"] == "evalsvc.capacity/1"
    assert prefill["kv_bytes_per_token"] == 2 * decode["kv_bytes_per_token"] == 70272
    assert decode["tokens"] == 1_434_048 and decode["requests"]["32768"] == 43
    code, out, _ = evalsvc(*asked)
    assert code == 0 and "1,026.41 billion parameters" in out and "1,434,048" in out
    assert "each device holds every token's latent" in " ".join(out.split())


def test_a_checkpoint_is_placed_as_its_config_says_it_is_stored(evalsvc, tmp_path):
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    asked = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["re:.*lm_head.*", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    text = json.loads((SHIPPED / "kimi-k2.json").read_text()) | {"quantization_config": asked}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    on = ("--gpus", 8, "--gpu-memory", 141, "--plan", "w=stored,kv=fp8:uncalibrated")
    code, out, _ = evalsvc("capacity", "--config", tmp_path, *on)
    assert code == 0 and "1,434,048" in out and "under stored of what the checkpoint says" in " ".join(out.split())


def test_published_figures_and_the_reasons_of_those_that_differ(evalsvc, evalsvc_json):
    code, out, _ = evalsvc("capacity", "--published")
    said = " ".join(out.split())
    assert code == 0 and "715,072" in said and "differs" in said and "bytes a token and device" in said
    _, document = evalsvc_json("capacity", "--published")
    assert len(document["figures"]) == 8 and document["figures"][0]["met"] is True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either --config, or --published"),
        (("--published", "--config", "glm-5"), "give either --config, or --published"),
        (("--config", "nowhere"), "cannot be read"),
        (("--config", "glm-5", "--plan", "w=fp7"), "unknown weights format"),
        (("--config", "glm-5", "--gpu-memory", "0"), "--gpu-memory must be above 0"),
        (("--config", "glm-5", "--utilization", "1.1"), "--utilization above 0 and at most 1"),
    ],
)
def test_what_is_typed_wrongly_is_said_in_a_sentence(evalsvc, arguments, says):
    code, out, err = evalsvc("capacity", *arguments)
    assert (code, out) == (2, "") and says in err


def test_it_needs_no_torch():
    code = (
        "import sys\n"
        "from evalsvc.cli.main import main\n"
        "try:\n    main(['capacity', '--config', 'glm-5', '--gpus', '8', '--plan', 'w=stored'])\n"
        "except SystemExit as left:\n    assert not left.code\n"
        "assert not {'torch', 'transformers', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
