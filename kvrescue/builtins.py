"""The built-in components, registered like anybody's: through the plugin hooks.

All are named by strings, so that listing them imports neither torch nor anything else heavy.
"""

from __future__ import annotations

from kvrescue.hookspecs import Register, hookimpl

__all__: list[str] = []


@hookimpl
def kvrescue_register_policies(register: Register) -> None:
    register("torch", "kvrescue.policies.specs:TorchPolicySpec")
    register("vllm", "kvrescue.policies.specs:VLLMPolicySpec")
    register("replay", "kvrescue.replay.specs:ReplayPolicySpec")


@hookimpl
def kvrescue_register_evictors(register: Register) -> None:
    register("rkv", "kvrescue.evictors.rkv:RKV")
    register("snapkv", "kvrescue.evictors.snapkv:SnapKV")
    register("h2o", "kvrescue.evictors.h2o:H2O")
    register("streaming_llm", "kvrescue.evictors.streaming_llm:StreamingLLM")
    register("random", "kvrescue.evictors.random:RandomEviction")
    register("none", "kvrescue.evictors.none:NoEviction")


@hookimpl
def kvrescue_register_detectors(register: Register) -> None:
    register("entropy", "kvrescue.detectors.entropy:EntropyDetector")
    register("gzip", "kvrescue.detectors.gzip:GzipDetector")
    register("ngram", "kvrescue.detectors.ngram:NgramDetector")


@hookimpl
def kvrescue_register_scorers(register: Register) -> None:
    register("qwen_prm", "kvrescue.scorers.specs:QwenPRMSpec")
    register("vllm_prm", "kvrescue.scorers.specs:VLLMPRMSpec")
    register("http_prm", "kvrescue.scorers.specs:HTTPPRMSpec")
    register("likelihood", "kvrescue.scorers.specs:LikelihoodSpec")
    register("replay", "kvrescue.replay.specs:ReplayScorerSpec")
