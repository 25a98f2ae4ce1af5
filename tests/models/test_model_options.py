"""Options of loading a model as words of another command line."""

from headlens.models.model_options import ModelOptions
from headlens.options import words_of


def test_what_decides_how_a_model_is_read_is_repeated() -> None:
    assert words_of(ModelOptions()) == []
    assert words_of(ModelOptions(device="cpu")) == ["--device", "cpu"]
    options = ModelOptions(
        dtype="bfloat16", revision="v2", target_language="de", max_unknown=0.9, offline=True, allow_pickle=True
    )
    held = "revision=v2,target-language=de,max-unknown=0.9"
    assert words_of(options) == [
        "--dtype", "bfloat16", "--offline", "--model-args", held, "--trust", "pickle"
    ]  # fmt: skip
    assert words_of(ModelOptions(trust_remote_code=True)) == ["--trust", "remote-code"]
