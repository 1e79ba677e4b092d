"""Makes a tiny random-weight chat model on disk, so that a real vLLM can be run on two CPU cores.

Run by the Python of the vLLM environment, never imported by the test suite::

    <vllm env>/bin/python tests/real/tiny_model.py DIR [--vocabulary-tokens N] [--max-positions N] [--stop-every N]

The answers of this model are noise, which is all right: what is tested is which replica read what, and that
depends on the tokens of the prompts only. Everything that decides tokens is fixed here: the training text of
the tokenizer is written below, the weights come from one seed, and the chat template is a plain ChatML that
renders system, tools, tool calls and tool results in order, so that one turn's prompt is a prefix of the next.

``tokenizers``, ``transformers`` and ``torch`` are loaded by name, because the environment in which this file is
checked has none of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

SEED = 20_260


@dataclass(frozen=True)
class Recipe:
    """What may differ between two tiny models."""

    vocabulary_tokens: int = 512
    """Up to about 600 the text below suffices to train on; beyond it the standard library's sources are read too."""
    max_positions: int = 32_768
    stop_every: int = 0
    """So that noise ends in a normal way: one token in so many ends an answer. 0: only the end of a turn does."""


SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

TRAINING_TEXT = (
    "The function reads the file, parses each line and returns the list of errors.",
    "def read(path): return [line for line in open(path) if line.startswith('error')]",
    "You are a coding agent. Use the tools to read, edit and run the project's tests.",
    '{"name": "Read", "arguments": {"file_path": "src/module/main.py", "limit": 200}}',
    "The test failed because the counter was decremented twice; the fix releases it once.",
    "for index in range(100): print(index, index * index, sep=', ')",
)

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


MOST_WITHOUT_LIBRARY_TOKENS = 600


def training_text(recipe: Recipe) -> Iterator[str]:
    """What the tokenizer learns from; always the same under one release of Python."""
    yield from TRAINING_TEXT * 4
    if recipe.vocabulary_tokens > MOST_WITHOUT_LIBRARY_TOKENS:
        for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            yield source.read_text(errors="replace")


def write_tokenizer(directory: Path, recipe: Recipe) -> None:
    """Train and save a byte-level BPE: any text is encodable, and no text becomes an unknown token."""
    tokenizers = import_module("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_tokens,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(recipe), trainer)
    fast = import_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=recipe.max_positions,
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(directory)


def write_weights(directory: Path, recipe: Recipe) -> None:
    """Save a two-layer Llama with random weights from one seed, and which tokens end an answer."""
    torch = import_module("torch")
    transformers = import_module("transformers")
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=recipe.vocabulary_tokens,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=recipe.max_positions,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
        tie_word_embeddings=True,
        torch_dtype="bfloat16",
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    # No answer at temperature 0 ends before its limit: of hundreds of random logits the highest is above 0.
    with torch.no_grad():
        model.get_output_embeddings().weight[config.eos_token_id] = 0
    model.save_pretrained(directory, safe_serialization=True)
    if recipe.stop_every:
        ends = [config.eos_token_id, *range(len(SPECIAL_TOKENS), recipe.vocabulary_tokens, recipe.stop_every)]
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def main(arguments: list[str]) -> int:
    """Write the model into the directory named; a complete one is kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--vocabulary-tokens", type=int, default=Recipe.vocabulary_tokens)
    parser.add_argument("--max-positions", type=int, default=Recipe.max_positions)
    parser.add_argument("--stop-every", type=int, default=Recipe.stop_every)
    options = vars(parser.parse_args(arguments))
    directory: Path = options.pop("directory")
    recipe = Recipe(**options)
    done = directory / "tiny-model.json"
    made_from = {"program": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(), **asdict(recipe)}
    if done.exists() and json.loads(done.read_text()) == made_from:
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory, recipe)
    write_weights(directory, recipe)
    done.write_text(json.dumps(made_from))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
