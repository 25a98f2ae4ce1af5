"""Options of loading a model as words of another command line."""

from headlens.models.model_options import ModelOptions


def test_what_decides_how_a_model_is_read_is_repeated() -> None:
    assert ModelOptions(device="cpu").as_options() == []
    options = ModelOptions(
        dtype="bfloat16", revision="v2", target_language="de", max_unknown=0.9, offline=True, allow_pickle=True
    )
    held = "revision=v2,target-language=de,max-unknown=0.9"
    assert options.as_options() == [
        "--dtype", "bfloat16", "--model-args", held, "--trust", "pickle", "--offline"
    ]  # fmt: skip
    assert ModelOptions(trust_remote_code=True).as_options() == ["--trust", "remote-code"]
