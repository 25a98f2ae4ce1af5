"""Options of loading a model as words of another command line."""

from headlens.models.model_options import ModelOptions
from headlens.options import typed_words


def test_what_decides_how_a_model_is_read_is_repeated() -> None:
    assert typed_words(ModelOptions()) == []
    assert typed_words(ModelOptions(device="cpu")) == ["--device", "cpu"]
    options = ModelOptions(
        dtype="bfloat16", revision="v2", target_language="de", max_unknown=0.9, offline=True, allow_pickle=True
    )
    held = "revision=v2,target-language=de,max-unknown=0.9"
    assert typed_words(options) == [
        "--dtype", "bfloat16", "--offline", "--model-args", held, "--trust", "pickle"
    ]  # fmt: skip
    assert typed_words(ModelOptions(trust_remote_code=True)) == ["--trust", "remote-code"]
