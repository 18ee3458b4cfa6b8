"""``sample(config)``: answers of a policy as judging tasks, so that people's preferences can train a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surefoot.assembly.models import build_policy, choose_device
from surefoot.assembly.train import exact_arithmetic, read_prompts
from surefoot.config import Config, require
from surefoot.data.judging import task_id
from surefoot.envs import SingleTurn
from surefoot.models.load import context_length, load_model_config
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.tokenizer import TextCodec, load_codec
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.records import Prompt, Rollout, Trajectory, digest_of
from surefoot.rollout import NativeEngine, Sampling
from surefoot.training.durable import json_bytes, write_file, writing
from surefoot.training.lineage import describe_input


@dataclass(frozen=True)
class Sampled:
    """What was made.

    Attributes:
        file: where the tasks lie.
        tasks: how many.
        answers: in them, all together.
        alike: prompts left out because their answers were all the same.
    """

    file: str
    tasks: int
    answers: int
    alike: int

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


def sample(config: Config) -> Sampled:
    """Answer each prompt several times and write the answers as judging tasks, a JSON object a line.

    A task has ``id`` (digest of prompt and responses), ``prompt`` (text or messages), ``responses``, ``digests`` (of
    the prompt with each response, which people's ratings are filed under), ``stop_reasons``, ``prompt_id``, ``policy``
    and ``seed``. The same config makes the same tasks.

    Raises:
        UserError: something in config, prompts or model is wrong; nothing was written.
        RunError: the policy could not be sampled from, or the file could not be written.
    """
    require(config, "sample")
    keep_freed_memory()
    section, policy = config.sample, config.model.policy
    assert policy is not None
    trust = config.model.trust_remote_code
    with exact_arithmetic(config.run.threads):
        model_config = load_model_config(
            base_of_adapter(policy) if is_adapter(policy) else policy, trust_remote_code=trust
        )
        codec = load_codec(policy, chat_template=config.model.chat_template, trust_remote_code=trust)
        new_tokens = section.max_new_tokens or config.rollout.max_new_tokens
        source = section.prompts or config.data.prompts
        assert source is not None
        found = read_prompts(config.data, source, codec, context_length(model_config), new_tokens)
        prompts = found.prompts[: section.max_prompts]
        rollout = _answers(config, codec, model_config, prompts)
    described = describe_input(policy, "model")
    settings = {
        "policy": {"path": policy, "sha256": described["sha256"]},
        "seed": config.run.seed,
        "temperature": section.temperature,
        "top_k": section.top_k,
        "top_p": section.top_p,
        "max_new_tokens": new_tokens,
    }
    tasks = [task | settings for task in _tasks(rollout, section.answers)]
    file = Path(section.file).expanduser()
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, b"".join(map(json_bytes, tasks)))
    answers = sum(len(task["responses"]) for task in tasks)
    return Sampled(str(file), len(tasks), answers, len(prompts) - len(tasks))


def _answers(config: Config, codec: TextCodec, model_config: Any, prompts: Sequence[Prompt]) -> Rollout:
    section = config.sample
    vocabulary = codec.check_vocabulary(int(model_config.get_text_config().vocab_size))
    # Nothing is trained, so adapters that are yet to be made have no place here.
    plain = config.model_copy(update={"model": config.model.model_copy(update={"lora": None})})
    policy = build_policy(plain, vocabulary, choose_device(config.run.device))
    sampling = Sampling(
        max_new_tokens=section.max_new_tokens or config.rollout.max_new_tokens,
        temperature=section.temperature,
        top_k=section.top_k,
        top_p=section.top_p,
        stop_ids=codec.stop_ids,
        stop_strings=tuple(config.rollout.stop),
        max_rows=config.rollout.max_rows,
    )
    engine = NativeEngine(policy, sampling, codec, samples_per_prompt=section.answers, purpose="samples")
    return engine.rollout(prompts, SingleTurn(), seed=(config.run.seed, 0))


def _tasks(rollout: Rollout, answers: int) -> list[dict[str, Any]]:
    """A task for each prompt with at least two different answers."""
    tasks = []
    for start in range(0, rollout.num_rows, answers):
        group = rollout.trajectories[start : start + answers]
        different: dict[str, Trajectory] = {}
        for trajectory in group:
            different.setdefault(trajectory.response, trajectory)
        prompt = group[0].prompt
        if len(different) < 2 or prompt is None:
            continue
        said: Any = prompt.text if prompt.messages is None else [dict(m) for m in prompt.messages]
        tasks.append(
            {
                "id": task_id(said, list(different)),
                "prompt": said,
                "responses": list(different),
                "digests": [digest_of(said, response) for response in different],
                "stop_reasons": [str(t.stop_reason) for t in different.values()],
                "prompt_id": prompt.id,
            }
        )
    return tasks
