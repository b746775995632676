"""Train the tokenizer that the scripted executor speaks: a small byte-level BPE with ChatML's special tokens.

Run it after a change to `text/assets/multilingual.txt` and commit what it writes: `python scripts/train_scripted_tokenizer.py`.
A small vocabulary is the point: most characters outside Latin take several tokens, so streams are cut inside characters.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ASSETS = Path(__file__).resolve().parents[1] / "src" / "millstream" / "text" / "assets"
VOCAB_SIZE = 1536
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def train(text: str) -> Tokenizer:
    """Train on `text`. The same text gives the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def main() -> None:
    """Write the tokenizer beside the text it was trained on."""
    tokenizer = train((ASSETS / "multilingual.txt").read_text(encoding="utf-8"))
    path = ASSETS / "scripted_tokenizer.json"
    path.write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    print(f"{path}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
