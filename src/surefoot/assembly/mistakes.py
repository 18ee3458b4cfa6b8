"""The eight common mistakes with PPO, as far as a config shows them. Torch-free.

They are those of the PPO handbook's section "Common PPO Mistakes"; what only samples show (prompts that overlap, a
reward that follows the length, an update that is too large) is found in ``preflight_samples`` and ``preflight_models``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config

MAX_EPOCHS: Final = 4
MAX_LR_FULL: Final = 1e-5
MAX_LR_ADAPTER: Final = 1e-3
MIN_LR_ADAPTER: Final = 1e-5
RECORDS: Final = ("README.md", "lineage.json", "calibration.json", "experiment.yaml")
"""Files in which a reward model's folder can say what it was trained on and how well it does."""
_SECURITY: Final = re.compile(
    r"safe|secur|harm|toxi|polic|guard|refus|pii|privacy|leak|secret|jailbreak|inject|permission|access|complian|abuse",
    re.IGNORECASE,
)
_LENGTH: Final = re.compile(r"len|long|short|brev|concis|verbos|size|words|tokens", re.IGNORECASE)


def common_mistakes(config: Config, verdicts: Verdicts) -> None:
    """One verdict per mistake, in the handbook's order; the seventh may come later, from the prompts themselves."""
    _reward_only(config, verdicts)
    _no_kl(config, verdicts)
    _no_length(config, verdicts)
    _reward_model_data(config, verdicts)
    _epochs(config, verdicts)
    _learning_rate(config, verdicts)
    _held_out(config, verdicts)
    _security(config, verdicts)


def _reward_only(config: Config, verdicts: Verdicts) -> None:
    name = "mistakes/reward_only"
    if config.ppo.kl.coef == 0 and config.evaluate.prompts is None:
        verdicts.warn(
            name,
            "only the reward is optimised: no KL to the reference, and no held-out prompts to see what it costs",
            "set ppo.kl.coef (0.02 to 0.1 is usual) and evaluate.prompts",
        )
    else:
        verdicts.ok(name, "more than the reward counts")


def _no_kl(config: Config, verdicts: Verdicts) -> None:
    name = "mistakes/kl"
    if config.ppo.kl.coef == 0 and config.stop.kl_budget is None:
        verdicts.warn(
            name,
            "KL to the reference is neither paid for nor limited: the policy may drift into whatever the reward likes",
            "set ppo.kl.coef, or stop.kl_budget",
        )
    elif config.ppo.kl.coef == 0:
        verdicts.ok(name, f"KL is not paid for, and the run stops at {config.stop.kl_budget:g} nats per response")
    else:
        kl = config.ppo.kl
        verdicts.ok(name, f"KL costs {kl.coef:g} per nat ({kl.controller}, in the {kl.place})", coef=kl.coef)


def _no_length(config: Config, verdicts: Verdicts) -> None:
    """Reward models like length; something in the config must not."""
    name = "mistakes/length"
    terms = config.reward.terms
    by_models = bool(terms) and all(t.kind == "model" for t in terms)
    if by_models and config.ppo.cut_off != "penalise" and not any(_LENGTH.search(t.name) for t in terms):
        verdicts.warn(
            name,
            "response length is ignored: the reward is a reward model's alone, which tends to like length, "
            "and responses that hit the limit lose nothing",
            "set ppo.cut_off: penalise, or add a reward function for the length; watch response/tokens_mean",
        )
    else:
        verdicts.ok(name, "response length has something against it, or the reward is no reward model's alone")


def _reward_model_data(config: Config, verdicts: Verdicts) -> None:
    name = "mistakes/reward_model_data"
    models = [t for t in config.reward.terms if t.kind == "model"]
    silent = [t for t in models if Path(t.place).is_dir() and not any((Path(t.place) / r).is_file() for r in RECORDS)]
    if not models:
        verdicts.ok(name, "no reward model in the reward")
    elif silent:
        alone = ", and nothing else is rewarded" if len(config.reward.terms) == 1 else ""
        verdicts.warn(
            name,
            f"nothing says what the reward model of {', '.join(t.name for t in silent)} was trained on{alone}",
            f"keep its lineage or model card beside it ({', '.join(RECORDS[:2])}), with its accuracy on held-out pairs;"
            " read what it scores highest and lowest (reward/highest, reward/lowest) before trusting it",
            terms=[t.name for t in silent],
        )
    else:
        verdicts.ok(name, f"{', '.join(t.name for t in models)}: a record of the reward model lies beside it")


def _epochs(config: Config, verdicts: Verdicts) -> None:
    name, epochs = "mistakes/epochs", config.ppo.epochs
    if epochs > MAX_EPOCHS:
        verdicts.warn(
            name,
            f"{epochs} epochs on each rollout: the later ones train on what the policy would no longer say",
            f"set ppo.epochs to at most {MAX_EPOCHS} (1 or 2 is usual), or ppo.max_update_kl",
            epochs=epochs,
        )
    else:
        verdicts.ok(name, f"{epochs} epoch(s) on each rollout", epochs=epochs)


def _learning_rate(config: Config, verdicts: Verdicts) -> None:
    name, rate = "mistakes/learning_rate", config.optim.policy_lr
    policy = config.model.policy
    adapter = config.model.lora is not None or (policy is not None and (Path(policy) / "adapter_config.json").is_file())
    limit, what = (MAX_LR_ADAPTER, "LoRA") if adapter else (MAX_LR_FULL, "full fine-tuning")
    if rate > limit:
        verdicts.warn(
            name,
            f"a learning rate of {rate:g} is high for {what}: policies collapse under it",
            f"set optim.policy_lr to at most {limit:g}, or watch kl/update_k3 and policy/clip_fraction closely",
            policy_lr=rate,
            limit=limit,
        )
    elif adapter and rate < MIN_LR_ADAPTER:
        verdicts.warn(
            name,
            f"a learning rate of {rate:g} is low for LoRA: fresh adapters start at zero, and little will be learned",
            "set optim.policy_lr to about 1e-4",
            policy_lr=rate,
            limit=MIN_LR_ADAPTER,
        )
    else:
        verdicts.ok(name, f"a learning rate of {rate:g} for {what}", policy_lr=rate)


def lacks_held_out(config: Config) -> bool:
    """Whether the config alone shows that there is no independent evaluation set."""
    return config.evaluate.prompts is None or config.evaluate.prompts == config.data.prompts


def _held_out(config: Config, verdicts: Verdicts) -> None:
    if lacks_held_out(config):
        what = "there are none" if config.evaluate.prompts is None else "they are the training prompts"
        verdicts.warn(
            "mistakes/held_out",
            f"no independent evaluation: held-out prompts (evaluate.prompts), {what}",
            "set evaluate.prompts to prompts that are not trained on; nothing else shows whether the policy got better",
        )


def _security(config: Config, verdicts: Verdicts) -> None:
    name = "mistakes/security"
    terms = [t.name for t in config.reward.terms if _SECURITY.search(t.name)]
    if terms:
        verdicts.note(
            name,
            f"reward {', '.join(terms)} makes what it punishes rarer, it forbids nothing",
            "keep deterministic controls (permissions, filters, limits) where a rule must hold; PPO replaces none",
            terms=terms,
        )
    else:
        verdicts.ok(name, "no reward term stands in for a security control")
