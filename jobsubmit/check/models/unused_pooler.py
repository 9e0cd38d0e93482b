"""Encoders of transformers whose pooler no code reads: it gets no gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, is_of_self, spelled, unparsed
from jobsubmit.check.program.tree import walk

# Models with a pooler behind the last layer, unless `add_pooling_layer=False` (transformers 4 and 5), and the names of
# published weights of such models.
_HAVE_POOLER = re.compile(
    r"^transformers\.(?:.*\.)?(?:Bert|Roberta|XLMRoberta|Camembert|Albert|Longformer|BigBird|MPNet|Ernie|RemBert"
    r"|MegatronBert|ViT|DeiT)Model(?:\.from_pretrained)?$"
)
_AUTO = re.compile(r"^transformers\.(?:.*\.)?AutoModel\.from_pretrained$")
_WEIGHTS = re.compile(r"^(?:google-bert/|FacebookAI/|hfl/)?(?:bert-|roberta-|xlm-roberta-|chinese-(?:bert|roberta)-)")
_NOT_TRAINED = re.compile(r"Teacher|Target|Ema|EMA|Frozen|Momentum")
_WITHOUT_POOLER = ("last_hidden_state", "hidden_states", "attentions")
_FREEZES = frozenset(["requires_grad", "requires_grad_", "get_peft_model", "pooler", "pooler_output", "LoraConfig"])


def trains_whole_encoders(code: Code) -> bool:
    """Return whether a program uses transformers, wraps whole models, and freezes no parameters."""
    return code.program.imports("transformers") and not (code.names & _FREEZES or _wraps_part(code))


def unused_poolers(code: Code, owner: ast.ClassDef, module: Module) -> Iterator[ast.Call]:
    """Yield the encoders that a model makes with a pooler, and of which it reads only the last hidden states."""
    if _NOT_TRAINED.search(owner.name):
        return
    for node in walk(owner):
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        made = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(target, ast.Attribute) or not is_of_self(target) or not isinstance(made, ast.Call):
            continue
        uses = [
            module.parents.get(one)
            for one in walk(owner)
            if isinstance(one, ast.Attribute) and one.attr == target.attr and isinstance(one.ctx, ast.Load)
        ]
        calls = [one for one in uses if isinstance(one, ast.Call) and spelled(one.func) == spelled(target)]
        is_only_called = bool(calls) and all(one in calls or _is_of_settings(one) for one in uses)
        if is_only_called and _has_pooler(code, made, module) and all(_is_hidden(one, module) for one in calls):
            yield made


def _wraps_part(code: Code) -> bool:
    """Return whether only a part of a model is wrapped: `net.head = DDP(net.head)`."""
    given = [argument(call, "module", 0) for _, call, name in code.reached.calls if is_ddp(name)]
    return any(isinstance(one, ast.Attribute) and not is_of_self(one) for one in given)


def _has_pooler(code: Code, made: ast.Call, module: Module) -> bool:
    name = code.program.name_of(made.func, module)
    if any(keyword.arg in ("add_pooling_layer", None) for keyword in made.keywords) or len(made.args) > 1:
        return False
    weights = code.values.of(made.args[0], module) if made.args else ""
    is_known = isinstance(weights, str) and _WEIGHTS.match(weights) is not None
    return _HAVE_POOLER.match(name) is not None or (_AUTO.match(name) is not None and is_known)


def _is_of_settings(use: ast.AST | None) -> bool:
    """Return whether something is read of an encoder that is no parameter: `self.bert.config.hidden_size`."""
    return isinstance(use, ast.Attribute) and use.attr in ("config", "dtype", "device")


def _is_hidden(call: ast.Call, module: Module) -> bool:
    """Return whether only the hidden states are read of what an encoder returns."""
    above = module.parents.get(call)
    if not isinstance(above, ast.Assign):
        return _takes_hidden(above, call)
    target = above.targets[0]
    if isinstance(target, ast.Tuple):
        return [unparsed(one) for one in target.elts[1:]] == ["_"]
    scope = module.scope_of(call)
    loads = [one for one in walk(scope) if isinstance(one, ast.Name) and one.id == spelled(target)]
    reads = [one for one in loads if isinstance(one.ctx, ast.Load)]
    is_one = len(loads) - len(reads) == 1
    return bool(reads) and is_one and all(_takes_hidden(module.parents.get(one), one) for one in reads)


def _takes_hidden(above: ast.AST | None, inner: ast.AST) -> bool:
    match above:
        case ast.Attribute(attr=name):
            return name in _WITHOUT_POOLER
        case ast.Subscript(value=value, slice=ast.Constant(value=place)):
            return value is inner and place in (0, *_WITHOUT_POOLER)
    return False
