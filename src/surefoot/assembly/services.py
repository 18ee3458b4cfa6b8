"""The trainer's side of services: who answers at an address, and whether it is who the run needs."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from surefoot.assembly.serve import critic_settings
from surefoot.config import Config, RewardTerm, token_from
from surefoot.errors import ServiceMismatch
from surefoot.models.tokenizer import TextCodec
from surefoot.rewards.http_calls import GaveUp, Patience
from surefoot.rewards.remote import RemoteReward, Scorer, own_server
from surefoot.rewards.spreading import Spread
from surefoot.serving import operations
from surefoot.serving.client import ServiceClient
from surefoot.serving.control import CriticCard
from surefoot.serving.remote_critic import RemoteCritic
from surefoot.serving.replicas import Replicas
from surefoot.serving.scorer import ServiceScorer
from surefoot.training.durable import json_bytes, parse_json, write_file

logger = logging.getLogger("surefoot")

RUN_FILE = "critic_service.json"


def connect_critic(config: Config, codec: TextCodec, *, patience_s: float | None = None) -> RemoteCritic:
    """The critic at ``critic.url``, once the service is ready.

    Args:
        config: sections ``critic``, ``model``, ``optim``, ``ppo`` and ``batch``.
        codec: the policy's tokenizer.
        patience_s: instead of the config's.
    Raises:
        ServiceMismatch: it has no critic, or one that is read or trained otherwise than this config says.
        ServiceUnavailable: it cannot be reached within ``critic.patience_s``.
    """
    section = config.critic
    assert section.url is not None
    token = token_from(section.token_env)
    patience = section.patience_s if patience_s is None else min(patience_s, section.patience_s)
    client = ServiceClient(section.url, token, timeout_s=section.timeout_s, patience_s=patience)
    client.wait_ready()
    found = client.handshake()
    if found.critic is None:
        raise ServiceMismatch(
            f"the service at {section.url} has no critic",
            got=f"roles: {', '.join(found.roles)}",
            allowed="roles: critic",
            hint="set serve.roles: [critic] in its config",
        )
    check_critic(found.critic, config, codec)
    rows = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    if rows > found.limits.rows:
        raise ServiceMismatch(
            f"the service at {section.url} takes fewer trajectories at once than a step has",
            got=f"{rows}: rollout.prompts_per_step x rollout.samples_per_prompt",
            allowed=found.limits.rows,
            hint="raise serve.max_rows in its config",
        )
    return RemoteCritic(client, found, overlap=section.overlap)


def check_critic(card: CriticCard, config: Config, codec: TextCodec) -> None:
    """Compare a service's critic with what the run needs.

    Raises:
        ServiceMismatch: naming everything that differs.
    """
    wanted: dict[str, Any] = {"dtype": config.model.dtype, **critic_settings(config)}
    if card.tokenizer is not None:
        wanted["tokenizer"] = codec.vocabulary_fingerprint()
    has = {"dtype": card.dtype, "tokenizer": card.tokenizer, **card.settings}
    differences = [f"{key}: {has.get(key)!r}, not {value!r}" for key, value in wanted.items() if has.get(key) != value]
    needed = max(codec.token_ids.values()) + 1
    if card.vocabulary < needed:
        differences.append(f"vocabulary: {card.vocabulary}, fewer than {needed}")
    if differences:
        raise ServiceMismatch(
            "the service's critic is not the one this run needs",
            got="; ".join(differences),
            hint="start the service with the trainer's config",
        )
    if card.threads != torch.get_num_threads():
        logger.warning(
            "the critic's service computes on %d threads and this process on %d: the last bits of its values may "
            "differ from a run in one process",
            card.threads,
            torch.get_num_threads(),
        )


@contextmanager
def served_critic(critic: object) -> Iterator[RemoteCritic | None]:
    """The critic if it is a service's, else None; it is let go of at the end."""
    if not isinstance(critic, RemoteCritic):
        yield None
        return
    try:
        yield critic
    finally:
        critic.close()


def bind_run(critic: RemoteCritic, folder: Path, name: str) -> None:
    """Give the critic the run's name at the service: made up once, kept in the run folder."""
    file = folder / RUN_FILE
    if file.exists():
        critic.run = str(parse_json(file.read_bytes())["run"])
        return
    critic.run = f"{name[:80]}-{secrets.token_hex(6)}"
    write_file(file, json_bytes({"run": critic.run, "model": critic.card.model}))


def remote_reward(term: RewardTerm) -> RemoteReward:
    """A remote term: Surefoot's own service where one answers at its addresses, else a server of the user's own.

    Raises:
        ServiceMismatch: replicas have different models, or none.
        ServiceUnavailable: nothing can be reached within the term's patience.
    """
    token = token_from(term.token_env)
    patience = Patience(term.timeout_s, term.patience_s)
    clients = [
        ServiceClient(address, token, timeout_s=term.timeout_s, patience_s=term.patience_s)
        for address in term.addresses
    ]
    scorer: Scorer
    if not _is_service(clients, patience):
        for client in clients:
            client.close()
        scorer = own_server(term.name, term.addresses, token=token, patience=patience)
    else:
        replicas = Replicas(clients, timeout_s=term.timeout_s, patience_s=term.patience_s)
        card = replicas.handshake().reward
        assert card is not None
        scorer = ServiceScorer(term.name, replicas, card)
    return RemoteReward(term.name, scorer, rows=term.rows, concurrency=term.concurrency, overlap=term.overlap)


def _is_service(clients: Sequence[ServiceClient], patience: Patience) -> bool:
    """Whether the first that answers speaks the protocol; what does not answer is left out."""
    operation = operations.recognise()
    spread = Spread({client.place: client for client in clients}, patience, logger=logger)
    try:
        return spread.call(lambda client, limit: client.try_once(operation, limit), 0) is not None
    except GaveUp as gave_up:
        raise operations.unavailable(operation, " and ".join(c.place for c in clients), gave_up, patience) from gave_up
