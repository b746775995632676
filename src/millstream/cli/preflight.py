"""Whether `millstream serve` with these options could start here, and would do well: `millstream doctor` where no server runs.

No check changes anything; what needs a model's files, or options that can work, is left out where there are none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from millstream.checkpoint.locate import ModelSource, configured_source
from millstream.checkpoint.weights import load_model_config
from millstream.cli import machine
from millstream.cli.checks import Check, look
from millstream.cli.plan import make_plan, size_text
from millstream.config import ServerConfig
from millstream.errors import RequestError, StartupError
from millstream.execution.registry import describe_executor
from millstream.grammar.source import convert
from millstream.grammar.vocabulary import vocabulary_of
from millstream.grammar.worker import fault
from millstream.launch.listen import bind
from millstream.messages.grammar import GrammarSpec
from millstream.text.chat_template import ChatTemplate
from millstream.text.tokenizer import Tokenizer, load_configured_tokenizer, scripted_text

SAMPLE_CHARS = 4000
OTHER_FILES = 64  # an entry worker's, beside connections
USER = {"role": "user", "content": "Hello"}
ASSISTANT = {"role": "assistant", "content": "Hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {  # what a chat may consist of, by the role that is tried
    "user": [USER],
    "assistant": [USER, ASSISTANT, USER],
    "system": [{"role": "system", "content": "Be kind."}, USER],
    "tool": [USER, CALLING, {"role": "tool", "tool_call_id": "call_1", "content": "12"}],
}
NEEDED = ("user", "assistant")


def check_installation(config: ServerConfig) -> list[Check]:
    """The findings, in the order in which a start would come upon them."""
    checks = [look("options", lambda: _options(config))]
    found: list[ModelSource | None] = []
    checks.append(look("model", lambda: _model(config, found)))
    if checks[-1].ok:
        of_model = _of_model(config, found[0])
        checks += of_model
        if checks[0].ok and all(check.ok for check in of_model):  # else nothing can be planned
            checks.append(look("memory", lambda: _memory(config)))
    checks += [
        look("open files", lambda: _open_files(config)),
        look("cache", lambda: _cache(config)),
        look("port", lambda: _port(config)),
    ]
    return checks


def _of_model(config: ServerConfig, source: ModelSource | None) -> list[Check]:
    loaded: list[Tokenizer] = []
    checks = [look("tokenizer", lambda: _tokenizer(config, source, loaded))]
    if loaded:
        tokenizer = loaded[0]
        checks += [
            look("template", lambda: _template(tokenizer)),
            look("ends", lambda: _ends(tokenizer, source)),
            look("grammar", lambda: _grammar(tokenizer)),
        ]
    checks.append(look("executor", lambda: describe_executor(config, source)))
    return checks


def _options(config: ServerConfig) -> str:
    config.check()
    return "can be used together"


def _model(config: ServerConfig, found: list[ModelSource | None]) -> str:
    source = configured_source(config)
    found.append(source)
    if source is None:
        return "none is needed"
    checked = ", with the expected SHA-256" if config.model == "embedded" else ""
    return f"{source.names[0]}: {source.path}{checked}"


def _tokenizer(config: ServerConfig, source: ModelSource | None, loaded: list[Tokenizer]) -> str:
    """Load it, and see that a stream of its tokens is the text of all of them, and the text that was encoded."""
    tokenizer = load_configured_tokenizer(config, source)
    loaded.append(tokenizer)
    text = scripted_text()[:SAMPLE_CHARS]
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoder = tokenizer.incremental()
    if "".join([*(decoder.push((each,)) for each in ids), decoder.flush()]) != tokenizer.decode(ids):
        raise StartupError("text decoded token by token differs from the text of all tokens.", hint="please report it")
    exact = "a text comes back as it was" if tokenizer.decode(ids) == text else "it changes some texts, as its kind does"
    tokenizer.load_fast_encoder()
    return (
        f"{tokenizer.vocab_size:,} tokens, decodes by {tokenizer.decoder_name}, encodes with {tokenizer.encoder_name}; {exact}"
    )


def _template(tokenizer: Tokenizer) -> str:
    """Render every role with each chat template. Users and assistants there must be; a model may know no other."""
    if not tokenizer.chat_templates:
        return "the model has no chat template: chats need one, by --chat-template"
    told = []
    for name, source in tokenizer.chat_templates.items():
        template = ChatTemplate(source, tokenizer.special_tokens)
        refused = {}
        for role, messages in CONVERSATIONS.items():
            try:
                template.render([dict(each) for each in messages])
            except RequestError as error:
                refused[role] = error.message
        for role in NEEDED:
            if role in refused:
                raise StartupError(f"`{name}` renders no {role}: {refused[role]}", hint="pass another by --chat-template")
        taken = [role for role in CONVERSATIONS if role not in refused]
        told.append(f"`{name}` renders {', '.join(taken)}" + (f"; refuses {', '.join(refused)}" if refused else ""))
    return "; ".join(told)


def _ends(tokenizer: Tokenizer, source: ModelSource | None) -> str:
    """The tokens that end an answer: there are some, each is in the vocabulary, and the template's end of a turn is one."""
    ids = tokenizer.eos_token_ids | (load_model_config(source).eos_token_ids if source is not None else frozenset())
    if not ids:
        raise StartupError(
            "no token ends an answer: every one would go on to its limit.", hint="the model's files lack an eos_token_id"
        )
    if outside := sorted(each for each in ids if not 0 <= each < tokenizer.vocab_size):
        raise StartupError(f"end tokens {outside} are outside the vocabulary of {tokenizer.vocab_size:,}.")
    shown = [tokenizer.decode([each], skip_special_tokens=False) for each in sorted(ids)]
    if tokenizer.chat_template is not None:
        closing = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens).closing_text.lstrip()
        first = tokenizer.encode(closing, add_special_tokens=False)[:1] if closing else []
        if first and first[0] not in ids:
            text = tokenizer.decode(first, skip_special_tokens=False)
            return f"{_quoted(shown)}; the template ends a turn with {text!r}, which is ordinary text: give it as a stop string"
    return _quoted(shown)


def _grammar(tokenizer: Tokenizer) -> str:
    """Compile a schema against the vocabulary, and make its first mask."""
    if not tokenizer.has_byte_table:
        return "no structured output: this vocabulary has no byte table"
    vocabulary = vocabulary_of(tokenizer, tokenizer.eos_token_ids)
    schema = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'
    wrong = fault(convert(GrammarSpec(kind="json_schema", source=schema)), vocabulary.compiled())
    if wrong:
        raise StartupError(f"a JSON schema cannot be followed with this vocabulary: {wrong}.", hint="please report it")
    return "a JSON schema compiles"


def _memory(config: ServerConfig) -> str:
    """What a start would take against what can be had now."""
    plan = make_plan(config, {})
    on_gpu = plan["executor"]["on_gpu"]  # whose memory the plan has measured itself
    needed, usable = plan["memory"]["processes" if on_gpu else "total"], machine.usable_memory()
    told = f"about {size_text(needed)} needed, {size_text(usable)} to be had"
    if needed > usable:
        kv = plan["memory"]["kv_cache"]
        raise StartupError(
            f"{told}.", hint=f"the KV cache is {size_text(kv)} of it: a smaller --max-total-tokens, or a smaller model"
        )
    return told


def _open_files(config: ServerConfig) -> str:
    limit, needed = machine.open_files(), config.max_connections + OTHER_FILES
    if limit is None or limit >= needed:
        return f"{'any number' if limit is None else f'{limit:,}'} allowed, for {config.max_connections:,} connections"
    raise StartupError(
        f"{limit:,} allowed, fewer than {config.max_connections:,} connections need.",
        hint=f"ulimit -Hn {needed}, LimitNOFILE= of systemd, or --max-connections {max(1, limit - OTHER_FILES)}",
    )


def _cache(config: ServerConfig) -> str:
    """The directory for packed weights, or the nearest one above it that exists, must be writable."""
    wanted = Path(config.cache_dir).expanduser() if config.cache_dir else user_cache_path("millstream")
    existing = next(each for each in (wanted, *wanted.absolute().parents) if each.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return f"{wanted} can be written"
    raise StartupError(f"{wanted} cannot be written: weights would be packed at every start.", hint="name another --cache-dir")


def _port(config: ServerConfig) -> str:
    sock = bind(config.host, config.port)
    host, port = sock.getsockname()[:2]
    sock.close()
    return f"{host}:{port} is free"


def _quoted(words: list[str]) -> str:
    return "an answer ends with " + ", ".join(f"`{word}`" for word in words)
