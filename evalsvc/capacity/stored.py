"""What each matrix of a checkpoint is stored in, from its config.json alone: what `w=stored` holds it in."""

from collections.abc import Mapping
from typing import Any

from evalsvc.engine.checkpoint.awq_config import METHOD as AWQ
from evalsvc.engine.checkpoint.awq_config import AwqConfig, read_awq
from evalsvc.engine.checkpoint.compressed_config import METHOD, CompressedConfig, quantization_of, read_compressed
from evalsvc.engine.checkpoint.gptq_config import METHOD as GPTQ
from evalsvc.engine.checkpoint.gptq_config import GptqConfig, read_gptq
from evalsvc.engine.precision import FP8_BLOCK, WeightFormat
from evalsvc.errors import CapabilityError

BF16 = WeightFormat()


class Stored:
    """Formats by the names of modules.

    Args:
        config: A config.json, of a multimodal model the whole.
        name: For errors.
    """

    def __init__(self, config: Mapping[str, Any], name: str):
        self._asked, self._name = quantization_of(config), name
        self._compressed: CompressedConfig | None = None
        self._words: GptqConfig | AwqConfig | None = None

    def format_of(self, module: str) -> WeightFormat:
        """What a linear is stored in; plain numbers are bf16.

        Raises:
            CapabilityError: In a way that is not read, or that no plan's format is.
        """
        asked = self._asked
        if asked is None:
            return BF16
        if not isinstance(asked, Mapping):
            raise self._refusal(f"its quantization_config is {asked!r}, which is no table of settings")
        method = asked.get("quant_method")
        if method == METHOD:
            return self._of_group(asked, module)
        if method in (GPTQ, AWQ):
            return self._of_words(asked, module)
        if method == "fp8" and asked.get("weight_block_size") == [FP8_BLOCK, FP8_BLOCK]:
            left = asked.get("modules_to_not_convert") or []
            return BF16 if any(_is_of(module, key) for key in left) else WeightFormat("fp8", "w8a8", FP8_BLOCK)
        raise self._refusal(f"its weights are stored by {method!r} in a way that no plan's format is")

    def _of_group(self, asked: Mapping[str, Any], module: str) -> WeightFormat:
        try:
            self._compressed = self._compressed or read_compressed(asked)
        except CapabilityError as error:
            raise self._refusal(str(error)) from None
        group = self._compressed.group_of(module)
        found = BF16 if group is None else group.own_format
        if found is None:
            raise self._refusal(f"{module} is stored as {group}, which with its activations is no plan's format")
        return found

    def _of_words(self, asked: Mapping[str, Any], module: str) -> WeightFormat:
        try:
            self._words = self._words or (read_gptq if asked["quant_method"] == GPTQ else read_awq)(asked)
        except CapabilityError as error:
            raise self._refusal(str(error)) from None
        words = self._words.words_of(module)
        if words is None:
            return BF16
        if words.own_format is None or words.ordered:
            order = ", inputs perhaps in another order (desc_act; only its files tell)" if words.ordered else ""
            raise self._refusal(f"{module} is stored as {words}{order}, which is no plan's format")
        return words.own_format

    def _refusal(self, reason: str) -> CapabilityError:
        return CapabilityError(f"{self._name}: {reason}; name a weights format in place of `stored`")


def _is_of(module: str, key: str) -> bool:
    return module == key or module.startswith(f"{key}.") or module.endswith(f".{key}") or f".{key}." in module
