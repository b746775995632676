"""What the server says about itself: health, readiness, models, configuration and live counts. None of it waits for work."""

from __future__ import annotations

import dataclasses
from typing import Any

from millstream import __version__
from millstream.config import SECRETS, ServerConfig
from millstream.entry.http.exchange import Exchange
from millstream.entry.native.answer import WEIGHT_VERSION
from millstream.entry.service import Service
from millstream.entry.survey import survey
from millstream.errors import ModelNotFound
from millstream.ipc.address import entry_name
from millstream.messages import WorkerReport


async def health(exchange: Exchange, service: Service) -> None:
    """Liveness: 503 until the server is ready for the first time, then 200 as long as it lives, whatever it is busy with."""
    service.check_alive()
    await exchange.send_json({"status": "ok"})


async def ready(exchange: Exchange, service: Service) -> None:
    """Readiness: 200 while the server can take requests, 503 with the reason otherwise. Independent of load."""
    service.check_ready()
    await exchange.send_json({"status": "ok"})


async def models(exchange: Exchange, service: Service) -> None:
    """The served model under each of its names, once it can be used: some clients and routers take this for readiness."""
    service.check_ready()
    await exchange.send_json({"object": "list", "data": [_card(service, name) for name in service.text.names]})


async def model(exchange: Exchange, service: Service) -> None:
    """One model."""
    service.check_ready()
    name = exchange.parameters["model"]  # may hold slashes
    if name not in service.text.names:
        raise ModelNotFound(name, service.text.names[0])
    await exchange.send_json(_card(service, name))


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "millstream",
        "root": service.text.names[0],
        "parent": None,
        "max_model_len": service.manager.engine.context_length,
    }


def _shown(config: ServerConfig) -> dict[str, Any]:
    """The options, with how many secrets there are in place of the secrets."""
    options = dataclasses.asdict(config)
    return options | {name: f"{len(options[name])} hidden" for name in SECRETS if options[name]}


def _worker(report: WorkerReport) -> dict[str, int]:
    return {
        "live_requests": report.live_requests,
        "late_rows_dropped": report.late_rows_dropped,
        "stream_mismatch_total": report.stream_mismatches,
        "ledger_mismatch_total": report.ledger_mismatches,
    }


def _model_facts(service: Service) -> dict[str, Any]:
    """What SGLang's clients look for under these names."""
    path = service.config.model  # `embedded` is what it is called; the scripted executor only goes by its name
    return {"model_path": path, "tokenizer_path": path, "served_model_name": service.text.names[0]}


async def model_info(exchange: Exchange, service: Service) -> None:
    """The served model, with SGLang's names. What the entry does not know of it is left out."""
    service.check_ready()
    parsers = service.text.parsers
    await exchange.send_json(
        {
            **_model_facts(service),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": WEIGHT_VERSION,
            "reasoning_parser": parsers.reasoning and parsers.reasoning.name,
            "tool_call_parser": parsers.tools and parsers.tools.name,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "max_model_len": service.manager.engine.context_length,
        }
    )


async def server_info(exchange: Exchange, service: Service) -> None:
    """Version, options, processes and live counts."""
    await exchange.send_json(await describe_live(service))


async def describe_live(service: Service) -> dict[str, Any]:
    """What /server_info says, asked of all processes.

    Raises:
        EngineDeadError: the server cannot say so now.
    """
    manager = service.manager
    found = await survey(service)
    stats, reports = found.stats, found.reports
    by_process = {
        "entry": sum(report.live_requests for report in reports),
        "scheduler": stats.scheduler_requests,
        "detokenizer": stats.detokenizer_requests,
    }
    return {
        "version": __version__,
        "model": service.text.names[0],
        **_model_facts(service),
        "max_total_num_tokens": manager.engine.num_pages * manager.engine.page_size,
        "text_encoder": service.text.tokenizer.encoder_name,
        "text_decoder": service.text.tokenizer.decoder_name,
        "configuration": _shown(service.config),
        "engine": manager.engine,
        "processes": service.processes,
        "entry_worker": service.entry,
        "entry_workers": {entry_name(number): report and _worker(report) for number, report in found.workers.items()},
        "live_requests": max(by_process.values()),
        "live_requests_by_process": by_process,
        "waiting": stats.waiting,
        "running": stats.running,
        "paused": stats.paused,
        "pages_total": stats.pages_total,
        "pages_free": stats.pages_free,
        "pages_cached": stats.pages_cached,
        "steps": stats.steps,
        "retractions": stats.retractions,
        "preemptions": stats.preemptions,
        "undelivered": stats.undelivered,
        "spec_draft_tokens": stats.draft_tokens,
        "spec_accepted_draft_tokens": stats.accepted_draft_tokens,
        "forced_tokens": stats.forced_tokens,
        "stored_responses": sum(report.stored_responses for report in reports),
        "stored_response_bytes": sum(report.stored_response_bytes for report in reports),
        "evicted_responses": sum(report.evicted_responses for report in reports),
        "late_rows_dropped": sum(report.late_rows_dropped for report in reports),
        "stream_mismatch_total": sum(report.stream_mismatches for report in reports),
        "ledger_mismatch_total": found.ledger_mismatches,
        "detokenizer_rows_dropped": stats.dropped_rows,
    }
