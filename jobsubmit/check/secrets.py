"""Keys and tokens in the files that are uploaded. A finding names kind and place, and never shows the secret."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from jobsubmit.bundle.git import Change
from jobsubmit.bundle.ignore import covers, parse_patterns
from jobsubmit.bundle.model import Bundle, BundleFile
from jobsubmit.common.finding import Finding

_LONGEST = 4 << 20  # bytes of a file that are looked at
_BINARY = 8192
_MOST_OF_A_KIND = 3
_KEY_IDS = ("an AWS access key", "a temporary AWS access key")
_EXAMPLE = re.compile(
    rb"example|sample|dummy|placeholder|changeme|change_me|your[-_]|user(?:name)?:(?:my)?pass|:(?:my)?(?:password|secret)@|xxxx|\*\*\*|<[^>]+>|\$[a-z_{(]|%\(|\{[a-z_]|fake|redacted|todo"
    rb"|replace|insert[-_ ]|change[-_ ]|enter[-_ ]|goes[-_ ]?here|[-_ ]here\b|not[-_ ]?a[-_ ]|some[-_]|dont[-_]"
    rb"|12345|abcdef|foobar|\.\.\.|[=:][ \"']*(?:password|postgres|admin|secret|root|test|guest)[\"']?\s*$",
    re.I,
)
# An id in front of it says that it is the address of something that was signed; the id itself signs nothing.
_SIGNED_ADDRESS = re.compile(rb"(?:X-Amz-Credential|AWSAccessKeyId|AccessKeyId|Credential)(?:=|%3D)$", re.I)


# The name of a variable, a path, a name given as its own password: what a key would not be.
_NO_SECRET = re.compile(rb"""["'](?:[A-Z0-9_]+|/[^"']*|[\w.-]+/[\w./-]+)["']$|://([^:/]+):\1@""")


class Rule(NamedTuple):
    """A kind of secret and its form, as its issuer documents it.

    A rule that `is_lower` is matched against the text in lower case. Each begins with fixed text, or has some `within`
    it, in lower case: this is looked for first, because most files have it nowhere.
    """

    kind: str
    pattern: bytes
    is_lower: bool = False
    within: bytes = b""


class Compiled(NamedTuple):
    """A rule, its pattern, and the letters of its fixed text."""

    rule: Rule
    pattern: re.Pattern[bytes]
    letters: bytes


_PEM_HEADERS = rb"(?:(?:\\n|[\s\"'+,])*[A-Za-z-]+: [^\n\"']{0,100})*"
_PEM_BODY = rb"(?:\\n|[\s\"'+,|>-])*[A-Za-z0-9+/=]{40,}"
_ASSIGNED = rb"[\"'\])]*\s*[:=]\s*[\"']?"
_ASSIGNED_TEXT = rb"[\"'\])]*\s*[:=]\s*[\"']"
_SECRET_KEY_NAMES = {
    **dict.fromkeys((b"secret_access_key", b"secretaccesskey", b"secret_key", b"secretkey"), b"secret"),
    b"obs_sk": b"",
}
_TOKEN_NAMES = {
    b"api_key": b"api",
    b"apikey": b"api",
    b"api_token": b"api",
    b"auth_token": b"_token",
    b"access_token": b"_token",
}
_PASSWORD_NAMES = {b"password": b"passw", b"passwd": b"passw", **_TOKEN_NAMES, b"client_secret": b"secret"}
_OF_VARIABLE = rb"\(\s*[\"'][a-z0-9_]*(?:key|token|secret|passw(?:or)?d)[\"']\s*,\s*"
_ONE_WORD = rb"[\"'](?=[a-z]*[0-9])(?=[0-9]*[a-z])[a-z0-9]{20,}[\"']"
_MIXED = rb"(?=[^\"']*[0-9])(?=[^\"']*[a-z])[a-z0-9/+_.!@#%^&-]{20,}"

RULES = (
    Rule("a private key", rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----" + _PEM_HEADERS + _PEM_BODY),
    Rule("an AWS access key", rb"AKIA[A-Z2-7]{16}(?![A-Z0-9])"),
    Rule("a temporary AWS access key", rb"ASIA[A-Z2-7]{16}(?![A-Z0-9])"),
    *(
        Rule("a secret access key", name + _ASSIGNED + rb"[a-z0-9/+]{40}(?![a-z0-9/+])", is_lower=True, within=within)
        for name, within in _SECRET_KEY_NAMES.items()
    ),
    Rule("a GitHub token", rb"gh[pousr]_[A-Za-z0-9]{36}"),
    Rule("a GitHub token", rb"github_pat_[A-Za-z0-9_]{22,}"),
    Rule("a GitLab token", rb"glpat-[A-Za-z0-9_-]{20}"),
    Rule("a Hugging Face token", rb"hf_[A-Za-z0-9]{34}"),
    Rule("an OpenAI key", rb"sk-(?:proj-|svcacct-)?[A-Za-z0-9_-]*T3BlbkFJ[A-Za-z0-9_-]+", within=b"t3blbkfj"),
    Rule("an Anthropic key", rb"sk-ant-[A-Za-z0-9_-]{24,}"),
    Rule("a Slack token", rb"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    Rule("a Slack webhook", rb"https://hooks\.slack\.com/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{16,}"),
    Rule("a Stripe key", rb"sk_live_[A-Za-z0-9]{16,}", within=b"k_live_"),
    Rule("a Stripe key", rb"rk_live_[A-Za-z0-9]{16,}", within=b"k_live_"),
    Rule("a Google API key", rb"AIza[A-Za-z0-9_-]{35}"),
    Rule("a PyPI token", rb"pypi-AgE[A-Za-z0-9_-]{20,}"),
    Rule("an npm token", rb"npm_[A-Za-z0-9]{36}"),
    Rule("an npm token", rb":_authToken=[A-Za-z0-9-]{20,}"),
    Rule("a Docker token", rb"dckr_pat_[A-Za-z0-9_-]{20,}"),
    Rule("a SendGrid key", rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    Rule("an Azure storage key", rb"AccountKey=[A-Za-z0-9+/]{86}=="),
    Rule("a JSON web token", rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
    Rule("a kubeconfig key", rb"client-key-data:\s*[A-Za-z0-9+/=]{20,}"),
    Rule("a kubeconfig token", rb"id-token:\s*[A-Za-z0-9._-]{20,}", within=b"-token:"),
    Rule("a kubeconfig token", rb"refresh-token:\s*[A-Za-z0-9._-]{20,}", within=b"-token:"),
    *(
        Rule("a Weights & Biases key", b"wandb_" + name + _ASSIGNED + rb"[0-9a-z_]{40}", is_lower=True, within=b"wandb")
        for name in (b"api_key", b"key", b"token")
    ),
    Rule("a Neptune token", rb"eyJhcGlfYWRkcmVzcyI6[A-Za-z0-9+/_-]{40,}"),
    Rule("a Weights & Biases key", rb"wandb\.login\(key=[\"'][0-9a-z_]{40}", within=b"wandb"),
    Rule("a password in a URL", rb"://[^\s:/@\"'$<{]+:[^\s:/@\"'$<{]{6,}@[\w.-]+"),
    Rule("a .netrc password", rb"machine[ \t]+\S+\s+login\s+\S+\s+password\s+\S{6,}"),
    *(
        Rule("a key or password", name + _ASSIGNED_TEXT + _MIXED + rb"={0,2}[\"']", is_lower=True, within=within)
        for name, within in _PASSWORD_NAMES.items()
    ),
    *(  # the default of a variable: os.getenv("API_KEY", "…")
        Rule("a key or password", name + _OF_VARIABLE + _ONE_WORD, is_lower=True, within=within)
        for name, within in {rb"getenv": b"getenv", rb"environ\.(?:get|setdefault)": b"environ"}.items()
    ),
    *(
        Rule("a key or password", name + _ASSIGNED + rb"[0-9a-f]{32,}(?![0-9a-z])", is_lower=True, within=within)
        for name, within in _TOKEN_NAMES.items()
    ),
)
_DOTENV = Rule(
    "a secret in an .env file",
    rb"(?m)^\s*(?:export\s+)?(?:[a-z0-9_]*_)?(?:key|token|secret|password|passwd|credentials?)"
    rb"[ \t]*=[ \t]*[\"']?[^\s\"'#]{6,}",
    is_lower=True,
)
_TEMPLATES = (".example", ".sample", ".template", ".dist")


# What a pattern begins with, before anything that is not fixed.
_FIXED = re.compile(rb"(?:[A-Za-z0-9_:/=-]|\\[^A-Za-z0-9])+(?![?*+{|])")
_SIGNS = bytes(sign for sign in range(256) if not chr(sign).isascii() or not (chr(sign).isalpha() or sign in b"_-:/."))

RULES_DIGEST = hashlib.sha256(repr((RULES, _EXAMPLE, _NO_SECRET)).encode()).hexdigest()


def check_secrets(bundle: Bundle, allowed: tuple[str, ...], clean: Collection[str] = frozenset()) -> Iterator[Finding]:
    """Yield each secret in a bundle, except in files that match an allowed pattern (as in .gitignore).

    Files whose digest is in `clean` are not read again.
    """
    exempt = parse_patterns(allowed)
    for file in bundle.files:
        if (file.sha256 not in clean or _is_dotenv(file.path)) and not covers(exempt, file.path):
            yield from _in_file(file)


def clean_digests(bundle: Bundle, allowed: tuple[str, ...]) -> frozenset[str]:
    """Return the digests of all files of a bundle without secrets, except those that were not checked."""
    exempt = parse_patterns(allowed)
    return frozenset(file.sha256 for file in bundle.files if not allowed or not covers(exempt, file.path))


def strike_secrets(changes: Sequence[Change], allowed: tuple[str, ...]) -> tuple[Change, ...]:
    """Return changes without those that contain a secret or are not text, so that they can be shown."""
    exempt = parse_patterns(allowed)

    def shown(change: Change) -> Change:
        is_secret = next(_found_in(change.text, _rules_for(change.path)), None) is not None
        if is_secret and not covers(exempt, change.path):
            return _left_out(change, "left out, it contains a secret")
        return _left_out(change, "left out, it is not text: see the uploaded file") if change.is_binary else change

    return tuple(map(shown, changes))


def _left_out(change: Change, why: str) -> Change:
    return change._replace(diff=f"# jobsubmit: {change.path!a}: {why}\n".encode())


def _in_file(file: BundleFile) -> Iterator[Finding]:
    try:
        with open(file.source, "rb", buffering=0) as stream:
            data = stream.read(_LONGEST)
    except OSError:
        return  # it vanished: the upload says so
    if b"\0" in data[:_BINARY]:
        return
    found: dict[str, list[int]] = {}
    for number, kind in _found_in(data, _rules_for(file.path)):
        found.setdefault(kind, []).append(number)
    places = [(number, kind, len(found[kind])) for kind in found for number in found[kind][:_MOST_OF_A_KIND]]
    for number, kind, count in sorted(places):
        is_last = number == found[kind][:_MOST_OF_A_KIND][-1] and count > _MOST_OF_A_KIND
        more = f" (and {count - _MOST_OF_A_KIND:,} more in this file)" if is_last else ""
        yield Finding(
            "error",
            "secret",
            f"{file.path}:{number}",
            f"looks like {kind}: it would be uploaded with the code{more}",
            "pass it as `secrets: {NAME: env:NAME}`, or leave the file out with .jobignore; "
            "if it is not a secret, add the file to `allow_secrets`",
        )


def _rules_for(path: str) -> tuple[Compiled, ...]:
    return _compiled(is_dotenv=_is_dotenv(path))


@cache
def _compiled(*, is_dotenv: bool) -> tuple[Compiled, ...]:
    """Return each rule with its pattern: to look for it in `re`'s cache takes longer than most searches."""
    rules = (*RULES, _DOTENV) if is_dotenv else RULES
    return tuple(Compiled(rule, re.compile(rule.pattern), _letters(_fixed_text(rule))) for rule in rules)


def _fixed_text(rule: Rule) -> bytes:
    """Return text that is in each match of a rule: what is `within` it, else what its pattern begins with."""
    start = _FIXED.match(rule.pattern)
    return rule.within or (start[0].replace(b"\\", b"") if start else b"")


def _letters(data: bytes) -> bytes:
    """Return a text in lower case, without most of its signs: about a third of it, which is searched in less time."""
    return data.translate(None, _SIGNS).lower()


def _is_dotenv(path: str) -> bool:
    name = path.rpartition("/")[2]
    return (name == ".env" or name.startswith(".env.")) and not name.endswith(_TEMPLATES)


def _found_in(data: bytes, rules: tuple[Compiled, ...]) -> Iterator[tuple[int, str]]:
    """Yield line and kind of each secret, one for a line."""
    seen: set[int] = set()
    letters = _letters(data)
    present = {fixed for fixed in {rule.letters for rule in rules} if fixed in letters}
    lower = data.lower() if any(rule.letters in present for rule in rules if rule.rule.is_lower) else b""
    for rule, pattern, fixed in rules:
        if fixed not in present:
            continue
        for match in pattern.finditer(lower if rule.is_lower else data):
            number = data.count(b"\n", 0, match.start() + len(match[0]) - len(match[0].lstrip())) + 1
            found = data[match.start() : match.end()]
            if rule.kind in _KEY_IDS and _SIGNED_ADDRESS.search(data[max(0, match.start() - 40) : match.start()]):
                continue
            if number not in seen and not _EXAMPLE.search(found) and not _NO_SECRET.search(found):
                seen.add(number)
                yield number, rule.kind
