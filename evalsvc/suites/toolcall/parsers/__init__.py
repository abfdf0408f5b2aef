"""From an answer's text to calls: one file a family of formats, all of them by name here."""

from collections.abc import Container

from evalsvc.suites.toolcall.parsers.base import CallFormat
from evalsvc.suites.toolcall.parsers.deepseek import V3, V31
from evalsvc.suites.toolcall.parsers.harmony import HARMONY
from evalsvc.suites.toolcall.parsers.hermes import HERMES
from evalsvc.suites.toolcall.parsers.kimi import KIMI
from evalsvc.suites.toolcall.parsers.llama import LLAMA
from evalsvc.suites.toolcall.parsers.mistral import MISTRAL
from evalsvc.suites.toolcall.parsers.native import NATIVE
from evalsvc.suites.toolcall.parsers.plain import PLAIN, is_call
from evalsvc.suites.toolcall.parsers.pythonic import BEGUN, PYTHONIC
from evalsvc.suites.toolcall.parsers.tagged import GLM, QWEN_CODER

# The order is that of `detect`: what another template may hold too stands further down.
_ALL = (HARMONY, KIMI, V3, V31, GLM, QWEN_CODER, HERMES, MISTRAL, PYTHONIC, LLAMA, PLAIN)
FORMATS: dict[str, CallFormat] = {form.name: form for form in _ALL}
NAMES = (*FORMATS, NATIVE)


def detect(template: str) -> str | None:
    """Name of the format that a chat template teaches; None where it teaches none that is known."""
    for form in _ALL:
        if any(all(mark in template for mark in group) for group in form.templates):
            return form.name
    return None


def holds_call(text: str, names: Container[str]) -> bool:
    """Whether a text holds what a format would read as a call: a mark, a call's JSON, or `[NAME(` of a known tool."""
    if any(mark in text for form in _ALL for mark in form.marks):
        return True
    if any(found[0].strip("[( \t\r\n") in names for found in BEGUN.finditer(text)):
        return True
    brace = text.find("{")
    return brace >= 0 and is_call(text, brace)
