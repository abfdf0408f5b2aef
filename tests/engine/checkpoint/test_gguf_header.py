"""A GGUF header, written here byte by byte, against what is read of it."""

import struct
from pathlib import Path

import pytest

from evalsvc.engine.checkpoint.gguf_header import GgufTensor, read_header
from evalsvc.errors import CapabilityError, EngineError, EvalsvcError

NUMBERS = {
    0: ("B", 200),
    1: ("b", -3),
    2: ("H", 40000),
    3: ("h", -300),
    4: ("I", 4_000_000_000),
    5: ("i", -70000),
    6: ("f", 0.5),
    7: ("?", True),
    10: ("Q", 2**60),
    11: ("q", -(2**60)),
    12: ("d", 1e-300),
}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def strings(values: list[str]) -> bytes:
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values))


def tensor(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def write(path: Path, fields=(), tensors=(), version: bytes = struct.pack("<I", 3), mark: bytes = b"GGUF") -> Path:
    counts = struct.pack("<QQ", len(tensors), len(fields))
    path.write_bytes(mark + version + counts + b"".join([*fields, *tensors]))
    return path


ARCHITECTURE = field("general.architecture", 8, text("llama"))


def refusal(path: Path, kind: type[EvalsvcError]) -> str:
    with pytest.raises(kind) as caught:
        read_header(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_fields_of_every_type_are_read(tmp_path):
    fields = [field(f"n{kind}", kind, struct.pack(f"<{code}", value)) for kind, (code, value) in NUMBERS.items()]
    fields += [
        field(f"a{kind}", 9, struct.pack(f"<IQ3{code}", kind, 3, value, value, value))
        for kind, (code, value) in NUMBERS.items()
    ]
    fields += [field("s", 8, text("ä漢🎉")), field("t", 9, strings(["", "a b", "漢"])), field("e", 9, strings([]))]
    found = read_header(write(tmp_path / "a.gguf", fields)).fields
    for kind, (_, value) in NUMBERS.items():
        assert found[f"n{kind}"] == value and found[f"a{kind}"] == [value] * 3
    assert (found["s"], found["t"], found["e"]) == ("ä漢🎉", ["", "a b", "漢"], [])


@pytest.mark.parametrize("alignment", [None, 32, 64])
@pytest.mark.parametrize("padding", range(0, 40, 13))
def test_tensors_lie_from_the_next_multiple_of_the_alignment(tmp_path, alignment, padding):
    fields = [ARCHITECTURE, field("x", 8, text("x" * padding))]
    if alignment:
        fields.append(field("general.alignment", 4, struct.pack("<I", alignment)))
    path = write(tmp_path / "a.gguf", fields, [tensor("a", [3, 5], 0, 0), tensor("b", [7], 8, 128)])
    data = path.stat().st_size
    data += -data % (alignment or 32)
    assert read_header(path).tensors == (GgufTensor("a", (5, 3), 0, data), GgufTensor("b", (7,), 8, data + 128))


def test_the_tokenizers_hash_hangs_on_its_fields_alone(tmp_path):
    def hashed(tokens: list[str], name: str = "x") -> str:
        fields = [field("general.name", 8, text(name)), field("tokenizer.ggml.tokens", 9, strings(tokens))]
        return read_header(write(tmp_path / "a.gguf", fields)).tokenizer_hash

    assert hashed(["a", "b"]) == hashed(["a", "b"], "y") != hashed(["a", "c"])


def test_every_shorter_file_is_truncated(tmp_path):
    fields = [ARCHITECTURE, field("t", 9, strings(["a", "bc"])), field("n", 9, struct.pack("<IQ2H", 2, 2, 1, 2))]
    data = write(tmp_path / "a.gguf", fields, [tensor("a", [3, 5], 0, 0)]).read_bytes()
    for size in range(4, len(data)):
        (tmp_path / "a.gguf").write_bytes(data[:size])
        refusal(tmp_path / "a.gguf", EngineError)


@pytest.mark.parametrize("count", [2**63, 2**40])
@pytest.mark.parametrize("element", [8, 4])
def test_a_count_that_cannot_be_is_refused_before_memory_is_asked(tmp_path, count, element):
    path = write(tmp_path / "a.gguf", [field("x", 9, struct.pack("<IQ", element, count))])
    assert "truncated" in refusal(path, EngineError)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"mark": b"PK\x03\x04"}, EngineError, "another kind of file"),
        ({"version": struct.pack("<I", 1)}, CapabilityError, "version 1"),
        ({"version": struct.pack("<I", 4)}, CapabilityError, "version 4"),
        ({"version": struct.pack(">I", 3)}, CapabilityError, "other byte order"),
        ({"fields": [field("x", 13, b"")]}, EngineError, "field 'x'"),
        ({"fields": [field("x", 9, struct.pack("<IQ", 9, 1))]}, EngineError, "field 'x'"),
        ({"fields": [field("x", 8, struct.pack("<Q", 1) + b"\xff")]}, EngineError, "utf-8"),
        ({"fields": [field("split.count", 2, struct.pack("<H", 3))]}, CapabilityError, "split"),
        ({"fields": [field("general.alignment", 4, bytes(4))]}, EngineError, "alignment 0"),
        ({"tensors": [tensor("a", [1], 0, 0)] * 2}, EngineError, "tensor a is listed twice"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, kind, words):
    assert words in refusal(write(tmp_path / "a.gguf", **change), kind)


def test_an_empty_file_and_a_missing_one_are_named(tmp_path):
    (tmp_path / "a.gguf").touch()
    refusal(tmp_path / "a.gguf", EngineError)
    refusal(tmp_path / "b.gguf", EngineError)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "llama.size is missing"),
        (field("llama.size", 8, text("9")), "a str, not a number"),
        (field("llama.size", 7, b"\x01"), "a bool, not a number"),
        (field("llama.size", 9, struct.pack("<IQI", 4, 1, 9)), "a list, not a number"),
        (field("llama.size", 4, bytes(4)), "not a count above zero"),
        (field("llama.size", 6, struct.pack("<f", 1.5)), "not a count above zero"),
    ],
)
def test_a_field_that_should_count_something_is_named(tmp_path, value, words):
    header = read_header(write(tmp_path / "a.gguf", [ARCHITECTURE, *([value] if value else [])]))
    with pytest.raises(EngineError, match=words):
        header.count("size")


def test_ids_that_end_an_answer_are_joined(tmp_path):
    def ends(**ids: int):
        fields = [field(f"tokenizer.ggml.{role}_token_id", 4, struct.pack("<I", i)) for role, i in ids.items()]
        return read_header(write(tmp_path / "a.gguf", fields)).eos_token_id()

    assert (ends(), ends(eos=3), ends(eos=3, eot=3), ends(eos=3, eot=9)) == (None, 3, 3, [3, 9])
